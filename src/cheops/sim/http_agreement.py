"""What must hold at the end of a history with HTTP services: the services themselves are compared.

- Where the state of a resource differs between its sites, no site says CONVERGED.
- Every resource is CONVERGED, unless clients did what has no common order, or deleted what others were adding to.
- What was acknowledged is in every log. What was written last, as far as there is a last one, is in every service.
- No service has anything that its agent does not know, every request got a response, and no code failed.

What a request is about is judged here by the request alone, with no rule and no operation type of the production code.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import msgspec

from cheops.backends.http.copies import Copy, Index
from cheops.backends.http.ids import meta_id_of, meta_ids_in
from cheops.backends.http.paths import collection_of
from cheops.backends.http.payload import Request, request_of
from cheops.engine.status import Overall, status
from cheops.log.operation import Kind, Operation, Verdict
from cheops.sim.http_agent import Agent
from cheops.sim.http_world import HttpWorld, Sent
from cheops.sim.invariants import log_problems, oracle_of, phase_problems

_ADDS, _MAKES = "txn", "mkcol"
_READS = ("range", "get")


class Place(NamedTuple):
    """What a request changes: the path of a resource (that of the collection for a create), and the part of it."""

    service: str
    path: str
    part: str
    verb: str  # create, mkcol, put, patch, delete, read, txn

    @property
    def meta_id(self) -> str:
        last = self.path.rpartition("/")[2]
        return last if self.service == "notes" else meta_id_of("path", self.service, self.path)


def place_of(service: str, method: str, target: str, content: dict[str, object]) -> Place:
    path, _, query = target.partition("?")
    match service:
        case "kv":
            return Place(service, f"/$.key/{content['key']}", "", path.removeprefix("/kv/"))
        case "ledger":
            return Place(service, "/", str(content["account"]), "put" if path == "/set" else _ADDS)
        case "store" | "files":
            return Place(service, path, query, method.lower())
    whole, _, tag = path.partition("/tags/")
    return Place(service, whole, f"tags/{tag}" if tag else "", "create" if method == "POST" else method.lower())


def problems(world: HttpWorld) -> list[str]:
    """All violations; empty if there are none."""
    return list(_Check(world).problems())


class _Check:
    def __init__(self, world: HttpWorld) -> None:
        self._world = world
        self._sent = [one for one in world.sent if not one.has_no_effect]
        self._states: dict[str, dict[tuple[str, str], object]] = {}
        self._unknown: list[str] = []  # what services have, and their agents know nothing of
        for site, agent in world.agents.items():
            found = list(_registers(world, agent))
            self._states[site] = {(one.service, one.name): one.value for one in found}
            self._unknown += [f"{one.service} of {site} has {one.name}" for one in found if not one.is_known]

    def problems(self) -> Iterator[str]:
        world = self._world
        for error in world.loop.errors:
            yield f"an agent failed: {type(error).__name__}: {error}"
        for sent in world.sent:
            if sent.is_open:
                yield f"request {sent.number} got no response"
        for unknown in self._unknown:
            yield f"{unknown}, of which its agent does not know"
        for place in self._places:
            yield from (f"{place.service}{place.path}: {text}" for text in self._of_resource(place))

    @cached_property
    def _places(self) -> list[Place]:
        """Every resource that requests were about."""
        found = dict.fromkeys(
            self._whole(sent) for sent in self._sent if self._place(sent).verb not in ("range", "get")
        )
        return [place for place in found if place is not None]

    @staticmethod
    def _place(sent: Sent) -> Place:
        return place_of(sent.service, sent.method, sent.path, sent.content)

    def _whole(self, sent: Sent) -> Place | None:
        place = self._place(sent)
        if place.verb == "create":
            path = f"{place.path}/{sent.resource}"
            return place._replace(path=path, part="", verb="") if sent.resource else None
        return place._replace(part="", verb="")

    # -- one resource --------------------------------------------------------------------------------------

    def _of_resource(self, place: Place) -> Iterator[str]:
        world, meta_id = self._world, place.meta_id
        states = {site: self._state_at(site, place) for site in self._sites(place)}
        is_equal = len({repr(sorted(state.items())) for state in states.values()}) < 2
        said = self._said(meta_id, states)
        if not is_equal and (not said or Overall.CONVERGED in said.values()):
            yield f"the services differ, and the sites say {said or 'nothing'}: {states}"
        if meta_id not in world.decided:
            return
        oracle = oracle_of(world, meta_id)
        is_excused = self._has_no_order(meta_id) or self._loses_parent(place)
        for site in oracle.site_list:
            replica = world.nodes[site].replica(meta_id)
            if replica is None:
                yield f"{site} is involved and knows nothing of it"
                continue
            yield from log_problems(world, site, replica, oracle)
            if not is_excused:
                yield from phase_problems(world, site, replica)
        if is_excused:
            return
        if said and set(said.values()) != {Overall.CONVERGED}:
            yield f"nothing was contradictory, and the sites say {said}"
        elif is_equal and states:
            yield from self._lost(place, next(iter(states.values())))

    def _sites(self, place: Place) -> tuple[str, ...]:
        meta_id = place.meta_id
        if meta_id in self._world.decided:
            return oracle_of(self._world, meta_id).site_list
        return next((one.sites for one in self._sent if one.sites and self._whole(one) == place), ())

    def _said(self, meta_id: str, sites: Iterable[str]) -> dict[str, Overall]:
        found = {site: self._world.nodes[site].replica(meta_id) for site in sites}
        up = set(self._world.nodes)
        return {site: status(replica, up).overall for site, replica in found.items() if replica and replica.sites}

    def _state_at(self, site: str, place: Place) -> dict[str, object]:
        return {
            register: value
            for (service, register), value in self._states[site].items()
            if service == place.service and _owner(service, register) == place.path
        }

    # -- excuses -------------------------------------------------------------------------------------------

    def _has_no_order(self, meta_id: str) -> bool:
        """Whether concurrent operations of the resource lead to different states in different orders; or a transaction
        may need what a later request replaces, and so does not run at each site (docs/limitations.md)."""
        ops = [op for op in self._world.decided[meta_id].values() if op.kind is Kind.NORMAL and _runs(op)]
        asked = [(op, _place_of_op(op)) for op in ops]
        return _needs_replaced(asked) or any(
            one.is_concurrent(other) and _is_ordered(place, place_of_other)
            for number, (one, place) in enumerate(asked)
            for other, place_of_other in asked[:number]
        )

    def _loses_parent(self, place: Place) -> bool:
        """Whether somebody deleted what the resource is in, or refers to: at a site, that may have come first. A bucket
        is not deleted while it has objects, so its own deletion may fail, too."""
        deleted = {one.path for sent in self._sent if (one := self._place(sent)).verb == "delete" and not one.part}
        of_it = [one for one in self._sent if self._whole(one) == place]
        needed = {f"/notes/{one.content['ref']}" for one in of_it if "ref" in one.content}
        needed |= {place.path.partition("/comments/")[0]} - {place.path}
        is_bucket = place.service == "store" and place.path.count("/") == 1
        return (
            any(place.path.startswith(f"{one}/") or (is_bucket and one == place.path) for one in deleted)
            or not deleted.isdisjoint(needed)
            or any(self._loses_parent(place._replace(path=one)) for one in needed)
        )

    # -- what was written ----------------------------------------------------------------------------------

    def _lost(self, place: Place, state: dict[str, object]) -> Iterator[str]:
        if any(
            self._place(sent).verb == "delete" and self._whole(sent) == place and not self._place(sent).part
            for sent in self._sent
        ):
            return
        if place.service == "ledger":
            yield from self._wrong_balance(place, state)
            return
        sent = [one for one in self._sent if self._whole(one) == place]
        for register in dict.fromkeys(name for one in sent for name in self._written(one) if one.is_acknowledged):
            writes = [one for one in sent if register in self._written(one)]
            erased = any(self._erases(one, register) for one in sent)
            if register not in state:
                if not erased:
                    yield f"{register} is not there, and was acknowledged: {[one.number for one in writes]}"
                continue
            yield from self._stale(register, state[register], writes)

    def _written(self, sent: Sent) -> dict[str, object]:
        place = self._whole(sent)
        part = self._place(sent).part
        if place is None or self._place(sent).verb in ("delete", *_READS):
            return {}
        mark = {"store": "?", "notes": "/", "images": "/"}.get(sent.service, "")
        at = f"{place.path}{mark}{part}" if part else place.path
        return {f"{at}#{name}": value for name, value in sent.content.items() if name not in ("key", "account")}

    def _erases(self, sent: Sent, register: str) -> bool:
        place = self._place(sent)
        if register in self._written(sent) or place.verb not in ("put", "delete"):
            return False
        return not place.part or (place.verb == "delete" and place.part in register)

    def _stale(self, register: str, value: object, writes: list[Sent]) -> Iterator[str]:
        last = [one for one in writes if self._written(one)[register] == value]
        if not last:
            yield f"{register} is {value!r}, which nobody wrote"
            return
        op = self._operation(last[0])
        for other in writes:
            later = self._operation(other) if other.is_acknowledged else None
            if op and later and op.is_before(later) and _runs(later):
                yield f"{register} is {value!r}, and request {other.number} wrote it later"

    def _operation(self, sent: Sent) -> Operation | None:
        ops = self._world.decided.get(sent.resource, {})
        return next((op for id_, op in ops.items() if str(id_) == sent.op), None)

    def _wrong_balance(self, place: Place, state: dict[str, object]) -> Iterator[str]:
        """One site took all transactions, so the balance follows from those that it decided."""
        ops = [op for op in self._world.decided[place.meta_id].values() if op.kind is Kind.NORMAL and _runs(op)]
        if len({op.origin.site for op in ops}) > 1:
            return
        balances: dict[str, int] = {}
        for op in sorted(ops, key=lambda op: op.stamp):
            request = request_of(op.payload)
            content = msgspec.json.decode(request.text)
            name = f"/{content['account']}#value"
            is_set = request.path == "/set"
            balances[name] = content["value"] if is_set else balances.get(name, 0) + content["add"]
        if balances != state:
            yield f"the balances are {state}, and the transactions give {balances}"


def _runs(op: Operation) -> bool:
    return op.verdict is Verdict.OK


def _place_of_op(op: Operation) -> Place | None:
    request: Request = request_of(op.payload)
    if request.base:
        return None
    target = f"{request.path}?{request.query}" if request.query else request.path
    content = msgspec.json.decode(request.text) if request.text else {}
    return place_of(op.rtype.partition(":")[2], request.method, target, content)


def _needs_replaced(asked: list[tuple[Operation, Place | None]]) -> bool:
    sets = [(op, place) for op, place in asked if place and place.verb == "put" and place.service == "ledger"]
    return any(
        place and place.verb == _ADDS and set_before == set_after and before.is_before(op) and op.is_before(after)
        for op, place in asked
        for before, set_before in sets
        for after, set_after in sets
    )


def _is_ordered(one: Place | None, other: Place | None) -> bool:
    """Whether the order of two changes of a resource matters, and none of them replaces the other."""
    if one is None or other is None or "create" in (one.verb, other.verb):
        return False
    if one.verb == other.verb == _MAKES:  # each site keeps the collection that it made first
        return True
    return _ADDS in (one.verb, other.verb) or bool(one.part) != bool(other.part)


# -- the states of services ------------------------------------------------------------------------------------


class Register(NamedTuple):
    """What can be written and read by itself: `/notes/5/tags/red#value`, with meta-ids."""

    service: str
    name: str
    value: object
    is_known: bool  # whether the agent of the site knows the resource that it is of


def _registers(world: HttpWorld, agent: Agent) -> Iterator[Register]:
    """Everything that the services of a site have."""
    index = agent.backend.copies.index
    copies, local_path = index.copies.values(), agent.backend.sender.local_path
    # A comment may have been made while its note was deleted: the service has neither of them then.
    notes = {local_path(one): one.path for one in copies if one.service == "notes" and _has_parent(index, one)}
    named = {(copy.service, copy.path) for copy in copies}
    for (site, service), model in world.services.items():
        for name, value in model.registers() if site == agent.name else ():
            if service != "notes":
                yield Register(service, name, value, (service, _owner(service, name)) in named)
                continue
            # What a note referred to may be gone since; then it has another number at each site.
            is_ref = name.endswith("#ref")
            shown = notes.get(f"/notes/{value}", "gone").rpartition("/")[2] if is_ref else value
            public = _public(name, notes)
            yield Register(service, public or f"?{name}", shown, public is not None)


def _has_parent(index: Index, copy: Copy) -> bool:
    return all(one in index.copies for one in meta_ids_in(collection_of(copy.item)))


def _public(register: str, notes: dict[str, str]) -> str | None:
    """The name with meta-ids; None if what it is about has none."""
    owner = _owner("notes", register)
    return f"{notes[owner]}{register.removeprefix(owner)}" if owner in notes else None


def _owner(service: str, register: str) -> str:
    """The path of the resource that a register is of."""
    path = register.partition("#")[0]
    if service == "ledger":
        return "/"
    return path.partition("?")[0].partition("/tags/")[0]
