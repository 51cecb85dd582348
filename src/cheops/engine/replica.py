"""The state of one resource at one site. Each part has an owner, whose methods alone change it.

    history   which operations are known, and which of them are effective      cheops.log.history
    applied   which of them the local application holds, and what went wrong   runs.py
    slot      the run that is under way, and when the next may begin           runs.py
    drafts    operations of this site that have no verdict yet                 runs.py
    replies   what all sites replied to operations                             replies.py
    peers     what the other sites are known to have                           progress.py
    inbox     received operations that wait for their dependencies             mailboxes.py
    outbox    what is to be sent                                               mailboxes.py
    duties    what others are owed, and what is passed on                      mailboxes.py
    source    the site that sends what is missing here                         progress.py
    assemblies   pieces of snapshots, of all resources of the site             pieces.py
    drifts    that the applications were found to differ                       drift.py
    seal_request   what this site wants to seal, and what others stated        progress.py
    clients   clients that wait for replies                                    replies.py

History, applied state, drafts, replies and the last statement of this site are durable: ledger.py saves what is not a
document of its own, and restores all of it. What peers have is as of when the ledger was last saved; a peer that may be
missing something is asked again. The others are empty after a restart, and clients ask again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from operator import attrgetter
from types import MappingProxyType

from cheops.engine.documents import (
    Drift,
    Message,
    Progress,
    Proof,
    Report,
    Withdrawn,
    key_of,
    reply_key,
)
from cheops.engine.events import Effects, SitesRemoved
from cheops.engine.mailboxes import Duties, Inbox, Outbox
from cheops.engine.pieces import Assemblies
from cheops.engine.progress import PeerProgress, SealRequest, Source
from cheops.engine.replies import Replies, WaitingClients
from cheops.engine.runs import AppliedState, DraftQueue, RunSlot
from cheops.engine.settings import Limits, ResourceType, RoundTrips
from cheops.log.causality import Vector, contains, covers, joined
from cheops.log.epochs import FindMatrix
from cheops.log.history import History
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, OpId, Origin, Reply, Statement, content_of, store_of
from cheops.log.policy import Policy
from cheops.log.seals import excluding_seal

PolicyOf = Callable[[str], Policy | None]
NO_ONE: Mapping[str, str] = MappingProxyType({})


class RemovedSites(set[str]):
    """The sites that were removed from the mesh for good. All replicas of a site share one object."""

    def __init__(self) -> None:
        super().__init__()
        self.ever: set[str] = set()  # these, and those that were admitted again

    def change(self, event: SitesRemoved) -> set[str]:
        """Take what is known of sites now; return those that are no longer removed."""
        back = self - event.sites
        self.clear()
        self.update(event.sites)
        self.ever.update(event.sites, event.admitted)
        return back


class PeerViews(dict[str, PeerProgress]):
    """What the other sites are known to have. A site that nothing is known of yet has a view as soon as it is asked
    for."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def __missing__(self, site: str) -> PeerProgress:
        view = self[site] = PeerProgress(self._limits)
        return view


@dataclass
class SavedLedger:
    """What the saved ledger says, so that it is written again only when that changes (ledger.py)."""

    unsynced: bool = False
    closed: bool = False
    rejections: int = 0
    dirty: tuple[str, ...] = ()
    progress: Progress | None = None


class Replica:
    def __init__(  # noqa: PLR0913 - what a site gives each of its replicas
        self,
        resource: str,
        origin: Origin,
        find_matrix: FindMatrix,
        limits: Limits,
        *,
        policy_of: PolicyOf = lambda _type: None,
        gone: RemovedSites | None = None,
        met: Mapping[str, str] = NO_ONE,
        assemblies: Assemblies | None = None,
        trips: RoundTrips | None = None,
    ) -> None:
        self.resource = resource
        self.origin = origin
        self.site = origin.site
        self.limits = limits
        self.policy_of = policy_of
        self.gone = RemovedSites() if gone is None else gone
        self.met = met  # sites that this one has ever met in the mesh, with their last incarnation; likewise shared
        self.type = ResourceType()  # as this site configures it; known with the first operation
        self.history = History(find_matrix)
        self.applied = AppliedState(self.history)
        self.slot = RunSlot(limits)
        self.drafts = DraftQueue()
        self.replies = Replies(origin, self.met)
        self._listed: tuple[str, ...] = ()  # the list of sites, and those of it that are others: see `targets`
        self._others: tuple[str, ...] = ()
        self.peers = PeerViews(limits)
        self.peer = self.peers.__getitem__  # each step asks for each of them many times
        self.inbox = Inbox(limits)
        self.outbox = Outbox()
        self.duties = Duties(limits)
        self.source = Source()
        self.assemblies = assemblies or Assemblies(limits)  # likewise shared
        self.trips = trips or RoundTrips()  # likewise
        self.clients = WaitingClients()
        self.seal_request = SealRequest(limits)
        self.statement: Statement | None = None  # the last of this site, see statements.py
        self.drifts: dict[str, Drift] = {}  # by the site that has found it, see drift.py
        # Ids that two operations have; contents.py bounds them, by the bytes that they take per site.
        self.proofs: dict[OpId, Proof] = {}
        self.proof_bytes: Counter[str] = Counter()
        self.dropped_proofs: Counter[str] = Counter()  # beyond that bound, since the resource was loaded
        # What earlier incarnations of this store made and others do not have, see incarnation.py; the earlier stores of
        # this site that are accounted for; and, while it catches up after one of them, the keys that are distrusted.
        self.withdrawn: dict[OpId, Withdrawn] = {}
        self.inherited: tuple[Origin, ...] = ()
        self.is_catching_up = False
        self.distrusted: set[str] = set()
        self.saved = SavedLedger()
        self.state = ""  # a health.State, see there
        self.is_resting = False  # no event concerned it for a while
        self.converged_ms: int | None = None  # since when it is, as far as this site knows (health.py)
        self.due_ms: int | None = None  # when a tombstone may be dropped, as the ledger says
        # What the log had when this site said that it may be dropped, and promised to add nothing: see tombstones.py.
        self.has_promised = False  # ever: mostly neither was said
        self._ready_at: Vector | None = None
        self._closed_at: Vector | None = None

    # -- lookups -------------------------------------------------------------------------------------------

    @property
    def matrix(self) -> Matrix:
        return self.history.matrix

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites on the list, except those that were removed from the mesh for good. The list itself stays, so a
        site that is added again counts again."""
        listed = self.history.site_list
        if not self.gone:  # the usual case; every step asks this many times
            return listed
        return tuple(site for site in listed if site not in self.gone or site == self.site)

    @property
    def is_involved(self) -> bool:
        return self.site in self.history.site_list

    @property
    def has_left(self) -> bool:
        """Whether the resource is at other sites, and not at this one, as far as this one knows."""
        listed = self.history.site_list
        return bool(listed) and self.site not in listed

    @property
    def is_deleted(self) -> bool:
        """Whether the only operation in effect is a deletion."""
        return self.history.is_deleted

    @property
    def is_ready(self) -> bool:
        """Whether this site has nothing against forgetting the resource as it is now."""
        return self._ready_at is not None and self._ready_at == self.history.known

    @property
    def is_closed(self) -> bool:
        """Whether this site has promised to add nothing to the log as it is now. The promise ends when an operation of
        another site comes: that one had not promised, so nobody has dropped the log."""
        return self._closed_at is not None and self._closed_at == self.history.known

    @property
    def next_reply(self) -> int:
        return self.replies.known.get(self.origin, 0) + 1

    @property
    def revision(self) -> str:
        """A text that is another one as soon as an operation is added, or a run has ended here."""
        known = sorted((*self.history.known.items(), *((draft.origin, draft.seq) for draft in self.drafts)))
        return sha256(repr((known, self.next_reply)).encode()).hexdigest()[:16]

    def note_push(self, peer: str, now_ms: int) -> None:
        """New documents are sent to a peer."""
        known, replies = self.history.known, self.replies.known
        self.peer(peer).note_push(known, replies, now_ms, self.trips.patience_ms(peer))

    def targets(self) -> list[str]:
        """The other sites that must get documents: those on the list, and those that left it until they know that they
        left. A site that was removed from the mesh for good gets nothing, on the list or not."""
        own, history = self.site, self.history
        listed = history.site_list
        if listed is not self._listed:
            self._listed, self._others = listed, tuple(site for site in listed if site != own)
        found = [site for site in self._others if site not in self.gone] if self.gone else [*self._others]
        if own not in listed or history.is_deleted:  # in the usual case nobody has dropped it, or is served
            found = [site for site in found if not self.has_dropped(site) and not self._is_served(site)]
        if not history.ever_listed.issubset(listed):
            left = history.ever_listed.difference(listed)
            found += [site for site in sorted(left) if site != own and not self._has_left(site)]
        return found

    def is_target(self, peer: str) -> bool:
        """Whether a site is one of `targets`, in the usual case without a list of them."""
        listed, own = self.history.site_list, self.site
        is_usual = peer in listed and own in listed and peer != own and not self.history.is_deleted
        return (is_usual and peer not in self.gone) or peer in self.targets()

    def _is_served(self, site: str) -> bool:
        """Whether this site has left the resource, and another one on the list serves a site with a new store: it knows
        if the resource was deleted since. It gets what only this site has, and passes it on."""
        if self.is_involved or not self.history.site_list or not self._is_reborn(site):
            return False
        return any(other != site and not self._is_reborn(other) for other in self.sites)

    def _is_reborn(self, site: str) -> bool:
        """Whether a site took part in the resource with an earlier store only."""
        stores = {one.store for one in (*self.history.known, *self.replies.known) if one.site == site}
        return bool(stores) and self.met.get(site, "") not in {"", *stores}

    def has_dropped(self, site: str) -> bool:
        """Whether a site has dropped the resource, which is deleted here too, or which this site has left: it gets
        nothing of it any more."""
        view = self.peers.get(site)
        return view is not None and view.dropped and (self.history.is_deleted or not self.is_involved)

    def droppers(self) -> list[str]:
        """The sites that have dropped the resource: see `has_dropped`."""
        found = []
        for site, view in self.peers.items():  # every step asks for them
            if view.dropped and self.has_dropped(site):
                found.append(site)
        return found

    def _has_left(self, site: str) -> bool:
        """Whether a site that left knows that it left, and all its operations are known here; or it is gone for good.

        If it comes back nevertheless, its operations that ignore a seal have no effect (see cheops.log.seals).
        """
        if site in self.gone or self._is_invented(site):
            return True
        peer, listing = self.peers.get(site), self.history.site_list_op
        if peer is None or listing is None or peer.busy:
            return False
        if self.proofs and not peer.agrees:
            return False  # it may know the id of the list, and another content
        must_know = (listing.id, *self._seals_against(site))
        return all(contains(peer.known, id_) for id_ in must_know) and covers(self.history.known, peer.known)

    def untold(self) -> Iterator[str]:
        """The sites that left and are not known to know it; also one that was removed from the mesh: it may be back."""
        for site in sorted(self.history.ever_listed.difference(self.history.site_list)):
            if site != self.site and (site in self.gone or not self._has_left(site)):
                yield site

    def _is_invented(self, site: str) -> bool:
        """Whether only an operation that does not stand names a site (see contents.py), and this one has never met it.
        Otherwise somebody with the key of a site could make others wait for ever for one that does not exist."""
        if not self.proofs or site in self.met:  # the usual cases
            return False
        return not any(site in (op.sites or ()) for op in self.history.ops.values())

    def _seals_against(self, site: str) -> Iterator[OpId]:
        """The seals that a site must know to see that a list which names it does not count."""
        for op in (self.history.ops[id_] for id_ in self.history.orphans):
            # Not by its fate: if the operation failed, that does not name the seal, and its list counts all the same.
            if site in (op.sites or ()) and (sealing := excluding_seal(op, self.history.seals)):
                yield sealing.id

    def is_behind(self, peer: str) -> bool:
        """Whether a peer is not known to have all operations and replies. A deletion must also be done there before it
        can be forgotten here; a peer that has not said so is asked again."""
        view, history = self.peer(peer), self.history
        if view.is_unknown or not (view.known == history.known or covers(view.known, history.known)):
            return True
        if history.is_deleted and self.is_involved and not covers(view.settled, history.known):
            return True
        # A source sends all that this site has.
        replies = self.replies_for(peer) if view.source == self.site else self.owed_to(peer)
        return not covers(view.known_replies, replies)

    def peers_behind(self) -> set[str]:
        """Those of `targets` that may lack something, or have other contents."""
        found = set()
        for peer in self.targets():
            view = self.peer(peer)
            if view.differs or view.refused or self.is_behind(peer):
                found.add(peer)
        return found

    def owes(self, peer: str) -> bool:
        """Whether a peer is not known to have something that it must get from this very site."""
        view, own = self.peer(peer), self.origin
        if view.known.get(own, 0) < self.history.known.get(own, 0):
            return True
        return not covers(view.known_replies, self.owed_to(peer))

    def owed_to(self, peer: str) -> Vector:
        """The replies that a peer must get from this very site, up to these numbers. What is owed to all is for those
        on the list: a site that left needs operations only, to know that it left. If it is on a later list, it gets the
        replies then."""
        if peer in self.history.site_list:
            return self.duties.owed_to(peer)
        return self.duties.owed_to_one(peer)

    def replies_for(self, peer: str) -> Vector:
        """The replies that a peer gets if it wants all that this site has. A site that left gets those of its own: they
        show it that an earlier store of it took part (incarnation.py)."""
        if peer in self.history.site_list:
            return self.replies.known
        return joined(self.owed_to(peer), {one: n for one, n in self.replies.known.items() if one.site == peer})

    def was_absent(self, peer: str) -> bool:
        """Whether a peer lacks operations from a time when it was not on the list, so that nobody has sent them to it.
        It chooses one site that does (catch_up.py)."""
        known, listing = self.peer(peer).known, self.history.site_list_op
        if listing is None or covers(known, listing.deps):  # the usual case
            return False
        since = self._listed_since(peer)
        if peer in self.history.site_list:
            return since is not None and not covers(known, since.deps)
        return since is not listing  # the list that removed it was sent to it like any operation; this is a later one

    def _listed_since(self, site: str) -> Operation | None:
        """The operation since which a site is on the list without a break, or is not on it; the first that is left."""
        history = self.history
        is_listed, since = site in history.site_list, history.site_list_op
        for op in sorted(history.listings, key=attrgetter("stamp"), reverse=True):
            if op.id in history.orphans:
                continue
            if (site in (op.sites or ())) != is_listed:
                break
            since = op
        return since

    def awaits(self, site: str) -> bool:
        """Whether another site of the list is not known to have settled everything, or its last replies are missing."""
        view = self.peer(site)
        known = self.history.known
        if view.is_unknown or not (view.settled == known or covers(view.settled, known)):
            return not self.has_dropped(site)
        for one, n in view.known_replies.items():  # noqa: SIM110 - every step asks this for each site
            if one.site == site and n > self.replies.known.get(one, 0):
                return True
        return False

    @property
    def is_at_work(self) -> bool:
        """Whether there is something to do that waits for no other site."""
        slot, applied = self.slot, self.applied
        if slot.running or self.drafts or self.inbox.waiting or self.duties.unsent:
            return True
        return applied.settled != self.history.known or bool(
            self.outbox.has_deferred or slot.is_retrying or applied.unknown
        )

    @property
    def is_synced(self) -> bool:
        """Whether all sites involved are known to have all operations and replies."""
        return not any(self.is_behind(peer) for peer in self.targets())

    def matrix_for(self, op: Operation) -> Matrix:
        """The matrix that applies to an operation: a draft may introduce one that is not in force yet."""
        adopted = self.history.adopted
        if op.verdict is None and (adopted is None or op.matrix.introduced > adopted.introduced):
            return self.history.find_matrix(op.matrix.hash)
        return self.matrix

    # -- changes -------------------------------------------------------------------------------------------

    def set_type(self, type_: ResourceType) -> None:
        self.type = type_

    def add(self, op: Operation) -> None:
        """Add a decided operation to the history. The caller saves it."""
        self.inbox.admit(op)
        self.is_resting = False
        self.applied.history_changed(self.history.add(op))

    def keep_proof(self, proof: Proof) -> None:
        """Keep a proof, which may replace one with fewer contents."""
        id_ = OpId(proof.origin, proof.seq)
        before = len(self.proofs[id_].lost) if id_ in self.proofs else 0
        self.proofs[id_] = proof
        self.proof_bytes[proof.origin.site] += sum(len(content_of(one.op)) for one in proof.lost[before:])
        for peer in self.peers.values():
            peer.note_two_contents()

    def take_reply(self, reply: Reply, out: Effects) -> None:
        """Add a reply of any site, and save it."""
        stale = self.replies.take(reply)
        out.drop(reply_key(self.resource, old.origin, old.n) for old in stale)
        out.documents[key_of(reply)] = reply

    def take_report(self, peer: str, message: Message, report: Report | None, now_ms: int) -> None:
        """Update what a peer has from a message of it, which may also be a report that can be passed on."""
        self.forget_incarnation(peer, message.incarnation)
        view = self.peer(peer)
        view.observe(message, now_ms, self.site)
        if report is not None:
            view.keep_report(report, now_ms)
        took_ms = view.take_trip(self.origin, now_ms)
        if took_ms is not None:
            self.trips.note(peer, took_ms)
        if not self.history.known.keys().isdisjoint(message.known):
            view.note_same_life(now_ms)

    def forget_incarnation(self, peer: str, incarnation: str) -> None:
        """A peer is up with this incarnation: what an earlier one had may be lost."""
        before = self.peers[peer].incarnation if peer in self.peers else ""
        # A message names a generation too, a heartbeat only the store.
        if before == incarnation or (before and store_of(before) == incarnation):
            return
        self.replies.prefer(Origin(peer, incarnation))
        if before:
            del self.peers[peer]
            self.owe_replies()

    def owe_replies(self) -> None:
        """Whoever was to pass on the replies of this site may not do so any more: every site must get them from it."""
        for origin, n in self.replies.known.items():
            self.duties.owe(origin, n)

    def note_ready(self) -> None:
        """This site has nothing against forgetting the resource. It may still add to the log."""
        self._ready_at, self.has_promised = dict(self.history.known), True

    def note_closed(self) -> None:
        """This site adds nothing to the log as it is now. The caller saves that (ledger.py)."""
        self._closed_at, self.has_promised = dict(self.history.known), True

    def outlive(self, before: "Replica") -> None:
        """Take over what is not in the store from the state that a fault ended: a run that is under way goes on, and
        clients still wait."""
        self.slot, self.clients = before.slot, before.clients
