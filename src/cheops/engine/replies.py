"""The replies of all sites to the operations of one resource, and the clients that wait for them.

A client is first informed that its operation is durable, then of its verdict, then of the reply of each site. A site is
finished with an operation when its reply says so. It is also finished when it has settled the operation and all its
replies up to then were seen here, but none to this operation: then it skipped the operation, because another superseded
it, or it has the checkpoint that holds the effect. If this cannot be known, the client gets no final
status of the site.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from cheops.engine.events import Answer, Effects, Stage
from cheops.log.causality import NOTHING, Vector, contains, covers
from cheops.log.operation import Kind, Operation, OpId, Origin, Reply, Status, Verdict

if TYPE_CHECKING:
    from cheops.engine.replica import Replica

_FINISHED = (Status.OK, Status.KO)  # the site has run the operation
_FINAL = (*_FINISHED, Status.SUPERSEDED)  # nothing is reported after one of these
_TROUBLES = (Status.KO, Status.UNKNOWN)
_REPORTED = (*_FINISHED, Status.UNKNOWN)  # UNKNOWN is not final: the operator may resolve it


class Replies:
    """Replies by their origin and by their operation. Each origin numbers its own: 1, 2, 3 …

    A site may have replied to one operation from several stores. What its present store says counts, in whatever order
    the replies come: they are also read from the disk in another order than they came.
    """

    def __init__(self, own: Origin, stores: Mapping[str, str]) -> None:
        self._own = own
        self._stores = stores  # the last known incarnation of each other site, see Replica.met
        # What is kept. Of the numbers up to `known`, those that are missing here were dropped on purpose.
        self._by_origin: dict[Origin, dict[int, Reply]] = {}
        # Of those, the one reply of each origin to a replay.
        self._replays: dict[Origin, Reply] = {}
        # By site, the reply that says most about an operation: its own before that of a replay.
        self._by_site: dict[str, dict[OpId, Reply]] = {}
        # Those of `_by_site` that say KO or UNKNOWN: few, and looked at in every step.
        self.troubles: dict[tuple[OpId, str], Reply] = {}
        # Up to here every reply was taken. There are no gaps: callers of `take` keep the order.
        self.known: dict[Origin, int] = {}
        self._repeated: set[int] = set()  # numbers of own replies to operations that had one before
        # Up to here, some were never seen here: other sites had dropped them already.
        self.unseen: dict[Origin, int] = {}

    def __iter__(self) -> Iterator[Reply]:
        return (reply for replies in self._by_origin.values() for reply in replies.values())

    def get(self, id_: OpId, site: str) -> Reply | None:
        """The reply of a site that says most about an operation."""
        of_site = self._by_site.get(site)
        return of_site.get(id_) if of_site else None

    def __getitem__(self, key: tuple[OpId, str]) -> Reply:
        id_, site = key
        return self._by_site[site][id_]

    def operations_of(self, site: str) -> Collection[OpId]:
        """The operations that a site has replied to."""
        return self._by_site.get(site, {}).keys()

    def of_origin(self, origin: Origin) -> list[Reply]:
        """In the order of their numbers."""
        replies = self._by_origin.get(origin, {})
        return [replies[n] for n in sorted(replies)]

    def replays(self) -> Collection[Reply]:
        """The last reply of each origin to a replay."""
        return self._replays.values()

    def next_n(self, origin: Origin) -> int:
        return self.known.get(origin, 0) + 1

    def beyond(self, known: Vector) -> Iterator[Reply]:
        """The replies that a site with this knowledge is missing, in the order in which it must get them."""
        for origin, last in self.known.items():
            missing = range(known.get(origin, 0) + 1, last + 1)
            if not missing:
                continue
            replies = self._by_origin.get(origin, {})
            # Mostly few are missing, of many: only these are looked at. Or few are left, of many that were dropped.
            numbers = missing if len(missing) < len(replies) else sorted(n for n in replies if n in missing)
            for n in numbers:
                if n in replies:
                    yield replies[n]

    def take(self, reply: Reply) -> list[Reply]:
        """Add a reply; return those that it replaces. The reply of a replay lists all that is applied, so earlier
        replays are dropped."""
        of_origin = self._by_origin.setdefault(reply.origin, {})
        if reply.origin == self._own and reply.op is not None and self.get(reply.op, reply.origin.site) is not None:
            self._repeated.add(reply.n)
        stale = [self._replays[reply.origin]] if reply.replay and reply.origin in self._replays else []
        for old in stale:
            del of_origin[old.n]
        of_origin[reply.n] = reply
        if reply.replay:
            self._replays[reply.origin] = reply
        self.skip_to({reply.origin: reply.n - 1})
        self.known[reply.origin] = max(reply.n, self.known.get(reply.origin, 0))
        self._note_operations(reply)
        return stale

    def is_first(self, reply: Reply) -> bool:
        """Whether a new reply of this site is its first one to the operation. It is asked once."""
        if reply.n not in self._repeated:
            return True
        self._repeated.discard(reply.n)
        return False

    def prefer(self, store: Origin) -> None:
        """This is now known to be the present store of its site: its replies may have come before that was known."""
        if store.site not in self._by_site:  # the usual case: most sites have nothing to do with the resource
            return
        for origin in [origin for origin in self._by_origin if origin.shares_store(store)]:
            for reply in self.of_origin(origin):
                self._note_operations(reply)

    def _note_operations(self, reply: Reply) -> None:
        site = reply.origin.site
        if reply.op is not None:
            self._keep(reply.op, site, reply)
        for applied in reply.applied:
            before = self.get(applied.id, site)
            if before is None or before.status is not Status.OK or before.replay:
                self._keep(applied.id, site, reply)

    def _is_present(self, store: Origin) -> bool:
        return store == self._own or self._stores.get(store.site) == store.store

    def _keep(self, id_: OpId, site: str, reply: Reply) -> None:
        of_site = self._by_site.setdefault(site, {})
        before = of_site.get(id_)
        if before and self._is_present(before.origin) and not self._is_present(reply.origin):
            return
        of_site[id_] = reply
        if reply.status in _TROUBLES:
            self.troubles[id_, site] = reply
        else:
            self.troubles.pop((id_, site), None)

    def skip_to(self, floor: Vector) -> None:
        """Other sites have dropped the replies up to here, so they will never arrive."""
        for origin, n in floor.items():
            if n > self.known.get(origin, 0):
                self.known[origin] = self.unseen[origin] = n

    def forget_operations(self, ids: set[OpId]) -> None:
        for of_site in self._by_site.values():
            for id_ in ids & of_site.keys():
                del of_site[id_]
        self.troubles = {key: reply for key, reply in self.troubles.items() if key[0] not in ids}

    def drop(self, is_pointless: Callable[[Reply], bool]) -> list[Reply]:
        """Drop replies and return them. `known` stays: they are not to be sent again."""
        dropped = [reply for reply in self if is_pointless(reply)]
        for reply in dropped:
            del self._by_origin[reply.origin][reply.n]
            if reply.replay:
                del self._replays[reply.origin]
        return dropped


class _Client(Struct):
    request: str
    since: Vector  # the replies that were known when it came: among those, none is to its operation
    stores: Mapping[str, str]  # the incarnation of each other site when it came
    reported: dict[str, Status] = field(
        default_factory=dict
    )  # the last status of each site that was reported to the client
    has_effect: bool = True  # whether its operation has one; or had, when a checkpoint took its place

    def is_done(self, sites: Iterable[str]) -> bool:
        """Whether nothing more is reported of these sites."""
        for site in sites:  # noqa: SIM110 - every step asks this for each client
            if self.reported.get(site) not in _FINAL:
                return False
        return True


class WaitingClients:
    """The clients of one resource that wait for the outcome of their operation. They do not survive a restart."""

    def __init__(self) -> None:
        self._by_op: dict[OpId, _Client] = {}

    def __len__(self) -> int:
        return len(self._by_op)

    @property
    def operations(self) -> tuple[OpId, ...]:
        return tuple(self._by_op)

    def add(self, id_: OpId, request: str, replica: "Replica") -> None:
        self._by_op[id_] = _Client(request, dict(replica.replies.known), dict(replica.met))

    def remove(self, id_: OpId) -> None:
        self._by_op.pop(id_, None)

    def report_verdict(self, op: Operation, reply: Reply, out: Effects) -> None:
        """Acknowledge the operation. With a verdict other than OK no other site replies, so the client is done."""
        client = self._by_op.get(op.id)
        if client is None:
            return
        site = reply.origin.site
        client.reported[site] = reply.status
        out.others.append(_answer(op.resource, client.request, Stage.DECIDED, op.id, site, reply.status, reply))
        if op.verdict is not Verdict.OK:
            del self._by_op[op.id]

    def report_sites(self, replica: "Replica", out: Effects) -> None:
        """Report statuses that are new since the last report. A client whose sites are all finished is removed."""
        for id_, client in list(self._by_op.items()):
            if not contains(replica.history.known, id_):
                continue  # a draft: its verdict comes first
            if id_ in replica.history.ops and not contains(replica.history.folded, id_):
                client.has_effect = id_ not in replica.history.fates
            # Also of sites that were removed from the mesh: when one is back, its reply may be forgotten here.
            for site in replica.history.site_list:
                before = client.reported.get(site)
                if before in _FINAL:
                    continue
                status = _status_at(replica, id_, site, client)
                if status and status is not before:
                    client.reported[site] = status
                    reply = replica.replies.get(id_, site)
                    out.others.append(_answer(replica.resource, client.request, Stage.SITE, id_, site, status, reply))
            if client.is_done(replica.sites):
                del self._by_op[id_]


def _status_at(replica: "Replica", id_: OpId, site: str, client: _Client) -> Status | None:
    """The status that a site replied, or that follows from what it has settled."""
    reply = replica.replies.get(id_, site)
    if reply is not None and reply.status in _FINISHED:
        return reply.status
    if site not in replica.sites:
        return None
    if not contains(_settled_at(replica, site), id_) and not _is_deleted_before(replica, id_, site):
        return reply.status if reply and reply.status in _REPORTED else None
    return _status_without_reply(replica, id_, site, client)


def _status_without_reply(replica: "Replica", id_: OpId, site: str, client: _Client) -> Status | None:
    if _is_deleted_before(replica, id_, site):
        return Status.OK
    op, fate = replica.history.ops.get(id_), replica.history.fates.get(id_)
    if op and op.is_silent:
        return Status.OK
    if (op and not fate) or _may_be_unseen(replica, site, client):
        return None  # in effect here: that site does not know all of the reasons for that yet, and will run it
    if not contains(replica.history.folded, id_) or not client.has_effect:
        return Status.SUPERSEDED
    # The checkpoint here holds its effect. A site that joined since may have that, or the operations from a site that
    # has not forgotten them: then it skipped this one if a later one supersedes it.
    return Status.OK if site == replica.site else None


def _is_deleted_before(replica: "Replica", id_: OpId, site: str) -> bool:
    """Whether an operation deletes what a site has dropped, because all sites had deleted it: it never replies."""
    op = replica.history.ops.get(id_)
    if op is None or op.kind is not Kind.DELETE or id_ in replica.history.fates:
        return False
    return replica.has_dropped(site) and replica.replies.get(id_, site) is None


def _may_be_unseen(replica: "Replica", site: str, client: _Client) -> bool:
    """Whether the reply of a site may be one that the others had dropped before it came here: they do not wait for a
    site that was removed from the mesh, or from the list. Or it is of a store that the site has lost since: then the
    others may have it, or nobody."""
    if site != replica.site and client.stores.get(site) != replica.met.get(site):
        return True
    unseen = replica.replies.unseen.items()
    return any(origin.site == site and n > client.since.get(origin, 0) for origin, n in unseen)


def _settled_at(replica: "Replica", site: str) -> Vector:
    """What a site has settled, where "settled without a reply" means that it skipped it, or has it from a checkpoint;
    otherwise nothing."""
    if not replica.is_involved:  # replies are no longer sent to this site, so a missing one says nothing
        return NOTHING
    view, by = replica.peers.get(site), replica.history.site_list_op
    settled = replica.applied.settled if site == replica.site else view.settled if view else NOTHING
    # While a site is off the list it settles operations without running them. So it must know the list in force; and
    # all that it has settled must be known here, because among that may be a newer list without the site.
    if by is None or not contains(settled, by.id) or not covers(replica.history.known, settled):
        return NOTHING
    # Without a seal, what that orphans counts there, and may supersede what the site will run once it has the seal.
    if not all(contains(settled, fate.by) for fate in replica.history.orphans.values() if fate.by):
        return NOTHING
    reply_counts = [(origin, n) for origin, n in view.known_replies.items() if origin.site == site] if view else []
    # A reply of the site may still be on its way.
    has_all = all(n <= replica.replies.known.get(origin, 0) for origin, n in reply_counts)
    return settled if has_all else NOTHING


def _answer(  # noqa: PLR0913, PLR0917 - an answer's fields
    resource: str, request: str, stage: Stage, id_: OpId, site: str, status: Status, reply: Reply | None
) -> Answer:
    if reply is None or reply.op is None:  # the reply of a replay is about many operations
        return Answer(request, stage, id_, site, status, resource=resource)
    return Answer(request, stage, id_, site, status, reply.detail, reply.output, reply.timing, resource)
