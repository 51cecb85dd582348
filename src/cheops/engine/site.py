"""A site: all its resources, its peers, its clock. `step` handles one event and returns effects."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from cheops.engine import (
    catch_up,
    contents,
    exchange,
    health,
    hub,
    incarnation,
    ledger,
    outcome,
    restoration,
    retention,
    scheduler,
    snapshot,
    statements,
    steadiness,
    tombstones,
)
from cheops.engine.admission import refusal
from cheops.engine.documents import NO_DROPS, Document, Message, Report, SiteClock, key_of
from cheops.engine.draft import accept
from cheops.engine.events import (
    Answer,
    ClientLeft,
    Effect,
    Effects,
    Enumerate,
    Enumerated,
    Event,
    Fault,
    Loaded,
    MatricesReceived,
    PeerDown,
    PeerUp,
    Queried,
    Ran,
    Received,
    Recovered,
    Resolved,
    Retried,
    SitesRemoved,
    Stage,
    StoreOutdated,
    Submitted,
    Tick,
    Unstorable,
    Verified,
)
from cheops.engine.incarnation import Incarnations
from cheops.engine.intake import screened, without_more_of
from cheops.engine.matrices import Matrices
from cheops.engine.peer_stores import PeerStores
from cheops.engine.pieces import Assemblies
from cheops.engine.replica import RemovedSites, Replica
from cheops.engine.residency import Residency
from cheops.engine.settings import RetryTimer, RoundTrips, Settings
from cheops.log.causality import Clock
from cheops.log.matrix import NO_RULES, Matrix
from cheops.log.operation import Command, Kind, Operation, Origin, Status

_OF_A_RESOURCE = (Submitted, Ran, Resolved, Retried, Verified, Queried, ClientLeft)


class Site:
    """One site. A resource is loaded when an event concerns it, and leaves memory when none has for a while
    (residency.py). A restart loads the resources whose ledger says `unsynced`."""

    def __init__(self, origin: Origin, settings: Settings) -> None:
        self.origin = origin
        self.settings = settings
        self.clock = Clock()
        self._residency = Residency(settings.limits)
        self.replicas = self._residency.replicas
        self.matrices = Matrices(NO_RULES)
        self.up: dict[str, str] = {}  # peers that are up, and their incarnation
        self.gone = RemovedSites()
        self.assemblies = Assemblies(settings.limits)
        self._trips = RoundTrips()
        self._stores = PeerStores()
        self.incarnations = Incarnations(origin)
        self.drops = NO_DROPS
        self._now_ms = 0
        self._handlers: dict[type[Event], Callable[[Any, Effects], None]] = {
            Recovered: self._on_recovered,
            PeerUp: self._on_peer_up,
            PeerDown: self._on_peer_down,
            Enumerated: self._on_enumerated,
            MatricesReceived: self._on_matrices_received,
            SitesRemoved: self._on_sites_removed,
            StoreOutdated: self._on_store_outdated,
            Tick: self._on_tick,
            Loaded: self._on_loaded,
            Unstorable: self._on_unstorable,
        }
        # Resources whose state was dropped after a fault: when each may be loaded again, and what outlives it.
        self._faulty: dict[str, RetryTimer] = {}
        self._outlived: dict[str, Replica] = {}

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event. The driver carries out the effects in their order."""
        self._now_ms = now_ms
        if self.incarnations.is_closed:
            return self.incarnations.answers(event)
        handler = self._handlers.get(type(event))
        if handler is None:
            return self._dispatch(event).all()
        out = Effects()
        handler(event, out)
        return out.all()

    def _dispatch(self, event: Event) -> Effects:
        """Handle an event of one resource, which is loaded first if necessary."""
        resource = _resource_of(event)
        if replica := self.replicas.get(resource):
            return self._guarded(replica, partial(self._handle, replica, event), (event,))
        return Effects(others=[*self._residency.wait_for(resource, event)])

    # -- events of the site ----------------------------------------------------------------------

    def _on_recovered(self, event: Recovered, out: Effects) -> None:
        self.clock = event.clock
        self.incarnations.recover(event, out)
        self.drops = event.drops
        self.matrices |= {matrix.hash: matrix for matrix in event.matrices}
        self._stores.recover(event.peers)
        self._residency.add_to_backlog(event.unsynced)
        out.others += self._residency.wake_some()

    def _on_peer_up(self, event: PeerUp, out: Effects) -> None:
        self.up[event.peer] = event.incarnation
        if self._stores.meet(event.peer, event.incarnation, out):
            out.others.append(Enumerate(event.peer))  # its store is new and may be empty; or it has missed something
        self._residency.unsettle()
        for replica in self.replicas.values():
            replica.forget_incarnation(event.peer, event.incarnation)
        self._residency.unpark({event.peer})
        for replica in list(self._residency.active_replicas()):
            if replica.is_target(event.peer):
                replica.peer(event.peer).probe_now()
                attend = partial(catch_up.attend, replica, event.peer, self.up, now_ms=self._now_ms)
                out.merge(self._guarded(replica, attend))

    def _on_peer_down(self, event: PeerDown, out: Effects) -> None:
        del out
        self.up.pop(event.peer, None)
        self._residency.unsettle()

    def _on_enumerated(self, event: Enumerated, out: Effects) -> None:
        self._residency.add_to_backlog(event.resources)
        self.incarnations.note_enumerated(event.peer)
        self._stores.note_enumerated(event.peer)
        out.others += self._residency.wake_some()

    def _on_store_outdated(self, event: StoreOutdated, out: Effects) -> None:
        self.incarnations.close("", event, self.clock, self._now_ms, out)

    def _on_sites_removed(self, event: SitesRemoved, out: Effects) -> None:
        back = self.gone.change(event)
        self._residency.unsettle()
        self._stores.note_removed(event.sites, out)
        self._residency.unpark(self.gone)
        out.others += [Enumerate(site) for site in sorted(back)]  # added again: they have missed what happened since
        out.others += self._residency.wake_some()

    def _on_matrices_received(self, event: MatricesReceived, out: Effects) -> None:
        self.matrices.keep(event.matrices, out)

    def _on_tick(self, event: Tick, out: Effects) -> None:
        del event
        self._residency.add_to_backlog(name for name, timer in self._faulty.items() if timer.is_due(self._now_ms))
        out.others += self._residency.wake_some()
        if self._residency.is_complete:
            self.incarnations.finish(out)
            self._stores.finish(out)
        for replica in list(self._residency.active_replicas()):
            out.merge(self._guarded(replica, partial(self._work_on, replica)))
        self._unload_idle(out)
        self.assemblies.drop_silent(self._now_ms)

    def _work_on(self, replica: Replica, out: Effects) -> None:
        is_steady = self._is_steady(replica)
        if not is_steady:
            incarnation.release_stranded(replica, self.up)
            scheduler.advance(replica, out, self._now_ms)
        pulls = replica.duties.pulls
        for peer in replica.targets():
            catch_up.attend(replica, peer, self.up, out, self._now_ms)
        replica.outbox.flush_pending()
        hub.pull(replica, self.up, out, self._now_ms)
        if not is_steady:
            exchange.request_matrices(replica, self.up, self.matrices, self._now_ms)
        if not is_steady or out.others or pulls != replica.duties.pulls or not replica.outbox.is_empty:
            self._complete_step(replica, out)

    def _is_steady(self, replica: Replica) -> bool:
        """Whether it is known that a step of an active resource would do nothing."""
        return self._residency.is_steady(replica) and not steadiness.is_due(replica, self._now_ms)

    # -- memory ------------------------------------------------------------------------------------

    def _unload_idle(self, out: Effects) -> None:
        """Unload resources without recent events. Parked ones stay while there are few: they will be wanted again."""
        residency = self._residency
        for resource, touched_ms in residency.pop_quiet(self._now_ms):
            replica = self.replicas[resource]
            if residency.is_in_use(replica):
                self._residency.touch(replica.resource, self._now_ms)
            elif resource in residency.parked:
                ledger.save_progress(replica, out)
                del self.replicas[resource]
            else:
                residency.rest(resource, touched_ms)
                out.merge(self._guarded(replica, partial(self._rest, replica)))
        residency.unload_idle(self._now_ms)

    def _rest(self, replica: Replica, out: Effects) -> None:
        """A resource comes to rest. Some of its log may be sealed now, which takes it up again."""
        replica.is_resting = True
        if retention.seal_due(replica):
            self._complete_step(replica, out)
        if replica.resource in self.replicas and replica.resource not in self._residency.active:
            health.save_at_rest(replica, out, self._now_ms)

    # -- events of a resource ----------------------------------------------------------------------

    def _handle(self, replica: Replica, event: Event, out: Effects) -> None:
        replica = self._in_present_life(replica, event, out)
        self._residency.unsettle(replica.resource)
        if not isinstance(event, Queried):  # whoever only looks does not keep it from coming to rest
            self._residency.touch(replica.resource, self._now_ms)
        match event:
            case Submitted():
                self._submit(replica, event, out)
            case Received():
                self._receive(replica, event.peer, event.message, out)
                if self.incarnations.is_closed:
                    return
            case Ran():
                outcome.finish(replica, event.n, event.outcomes, out, self._now_ms)
            case Queried():
                if event.refresh:
                    exchange.ask_all(replica, self.up, out)
                return
            case ClientLeft():
                replica.clients.remove(event.op)
                return
            case Resolved() | Retried() | Verified():
                outcome.take_finding(replica, event, out)
            case _:
                raise AssertionError(f"not an event of a resource: {event}")
        scheduler.advance(replica, out, self._now_ms)
        self._complete_step(replica, out)

    def _in_present_life(self, replica: Replica, event: Event, out: Effects) -> Replica:
        """The resource that an event is about. If that is a later one than the log here, it begins anew."""
        if not isinstance(event, Received) or not tombstones.gives_way(replica, event.message):
            return replica
        self._drop(replica, out)
        renewed = self.replicas[replica.resource] = self.new_replica(replica.resource)
        if not replica.is_involved and (replica.applied.entries or replica.applied.base_applied):
            incarnation.inherit(renewed, replica.origin, out)  # the copy that it kept when it left
        return renewed

    def _drop(self, replica: Replica, out: Effects) -> None:
        """Forget a resource, as if it had never been here."""
        self.drops = tombstones.drop(replica, self.drops, out)
        self._residency.remove(replica.resource)

    def _on_loaded(self, event: Loaded, out: Effects) -> None:
        found = restoration.usable_replica(event, self.incarnations)
        replica = self.replicas[event.resource] = found or self.new_replica(event.resource, event.documents)
        replica.duties.count_reports_from(self._now_ms)
        self._residency.touch(replica.resource, self._now_ms)
        waiting = self._residency.take_waiting(event.resource)
        out.merge(self._guarded(replica, partial(self._load, replica, event), waiting))
        for one in waiting if event.resource in self.replicas else ():
            out.merge(self._dispatch(one))  # if one of them fails, the others wait until the resource is loaded again
        if self.replicas.get(event.resource) is replica:
            out.merge(self._guarded(replica, partial(self._begin, replica)))

    def new_replica(self, resource: str, documents: Iterable[Document] = ()) -> Replica:
        """A resource that begins here, or is restored from these documents."""
        return Replica(
            resource,
            tombstones.origin_in(self.origin, documents, self.drops),
            self._matrix,
            self.settings.limits,
            policy_of=self.settings.policy_of,
            gone=self.gone,
            met=self._stores.last,
            assemblies=self.assemblies,
            trips=self._trips,
        )

    def _load(self, replica: Replica, event: Loaded, out: Effects) -> None:
        documents = self.incarnations.withdraw(event, out)
        is_restored = event.restored is not None and event.restored.replica is replica
        started = event.restored.started if is_restored and event.restored else ledger.load(replica, documents)
        self._learn_type(replica)
        if documents is not event.documents or replica.is_catching_up:
            incarnation.distrust(replica, out)
        if before := self._outlived.pop(replica.resource, None):
            replica.outlive(before)
        out.others += contents.alarms(replica)  # so that an operator sees it after a restart too
        if started and not (replica.slot.running and replica.slot.running.n == started.n):
            # Before any event: what waits may depend on what the crash left open.
            outcome.after_crash(replica, started, out)

    def _begin(self, replica: Replica, out: Effects) -> None:
        if not self._is_steady(replica):  # an event that waited for it may have done the same just now
            scheduler.advance(replica, out, self._now_ms)
            self._residency.active.add(replica.resource)
            self._complete_step(replica, out)
        self._faulty.pop(replica.resource, None)

    # -- faults ------------------------------------------------------------------------------------

    def _guarded(self, replica: Replica, work: Callable[[Effects], None], events: Iterable[Event] = ()) -> Effects:
        """Do something with one resource. A bug costs that resource this step, and no other resource anything."""
        out, running = Effects(), replica.slot.running
        try:
            work(out)
        except Exception as error:  # what fails here is not known, so nothing of the step can be trusted
            # A run that this step began does not begin; one that it ended has ended, and the store says that it began.
            replica.slot.restore(None if any(isinstance(event, Ran) for event in events) else running)
            self.matrices.give_up()
            out = Effects({key: one for key, one in out.documents.items() if isinstance(one, Matrix)})
            self._give_up(replica.resource, error, events, out)
        return out

    def _on_unstorable(self, event: Unstorable, out: Effects) -> None:
        self._give_up(event.resource, event.error, (), out)

    def _give_up(self, resource: str, error: Exception, events: Iterable[Event], out: Effects) -> None:
        """Drop the state of a resource, which may be half changed; the store has the truth. It is loaded again with
        the next event that concerns it, or after a while."""
        out.others.append(Fault(resource, error))
        for event in events:
            if isinstance(event, Submitted):
                what = f"nothing was done, because of a fault in this agent ({type(error).__name__}); its log has more"
                out.others.append(Answer(event.request, Stage.REFUSED, detail=what, resource=resource))
        if replica := self._residency.remove(resource):
            self._outlived[resource] = replica
        limits = self.settings.limits
        timer = self._faulty.setdefault(resource, RetryTimer(limits.retry_ms, limits.retry_most_ms))
        timer.back_off(self._now_ms)

    def _matrix(self, hash_: str) -> Matrix:
        return self.matrices[hash_]

    def _learn_type(self, replica: Replica) -> None:
        # The first operation names the type, and later ones take it from there.
        if op := replica.history.first or next(iter(replica.drafts), None):
            replica.set_type(self.settings.type_named(op.rtype))

    def _complete_step(self, replica: Replica, out: Effects) -> None:
        """Report to clients, forget, send, and note what is left to do."""
        if replica.clients:
            replica.clients.report_sites(replica, out)  # first: the next line may forget their operations
        has_gone_on = retention.prune(replica, out)
        if replica.withdrawn:
            self._issue_again(replica, out)
        has_gone_on |= self._seal_if_due(replica, out)
        if replica.history.is_deleted:
            tombstones.close_if_due(replica, self.up, out, self._now_ms)
        if replica.has_promised:
            exchange.ask_for_promises(replica, self.up, out, self._now_ms)
        exchange.send_pending(replica, self.up, out, self._now_ms)
        if replica.duties.unsent:
            hub.pass_on(replica, self.up, out, self._now_ms)
        ledger.save_changes(replica, out)
        at_work = replica.is_at_work or hub.is_pulling(replica, self.up)
        behind = steadiness.sites_behind(replica)
        is_steady = not has_gone_on and steadiness.is_steady(replica)
        self._residency.place(replica, at_work=at_work, behind=behind, up=self.up.keys(), steady=is_steady)
        if replica.has_promised and tombstones.may_drop(replica):
            self._drop(replica, out)
            return
        # Unsynced until it is at rest.
        is_parked = replica.resource in self._residency.parked
        health.save(replica, out, self._now_ms, unsynced=at_work or bool(behind), parked=is_parked)

    def _seal_if_due(self, replica: Replica, out: Effects) -> bool:
        """Submit a seal as an operation of its own, where no client's operation comes that could carry it; whether that
        was done."""
        statements.ask(replica, self.up, out, self._now_ms)
        if replica.drafts or replica.slot.running or not statements.is_ready(replica) or replica.is_closed:
            return False
        self._accept(replica, Submitted("", replica.resource, "seal", Command(""), Kind.SEAL), out)
        scheduler.advance(replica, out, self._now_ms)
        return True

    def _issue_again(self, replica: Replica, out: Effects) -> None:
        """Submit what was withdrawn and no other site has, once all of them have said what they have."""
        for peer in self.up.keys() & set(incarnation.unheard(replica)):
            exchange.recall(replica, peer, out, self._now_ms)
        for one in () if replica.is_closed else incarnation.ready(replica, out):
            event = incarnation.submission(replica, one, self.matrices.get(one.op.matrix.hash))
            problem = refusal(replica, event)
            again = None if problem else self._accept(replica, event, out).id
            incarnation.settle(replica, one, again, problem or "", out)
            scheduler.advance(replica, out, self._now_ms)

    # -- submitting --------------------------------------------------------------------------------

    def _submit(self, replica: Replica, event: Submitted, out: Effects) -> None:
        if problem := tombstones.refusal(replica, self.up) or refusal(replica, event):
            out.others.append(Answer(event.request, Stage.REFUSED, detail=problem, resource=event.resource))
            return
        draft = self._accept(replica, event, out)
        replica.clients.add(draft.id, event.request, replica)
        out.others.append(Answer(event.request, Stage.ACCEPTED, draft.id, self.origin.site, resource=event.resource))
        if draft.verdict is not None:
            decided = (event.request, Stage.DECIDED, draft.id, self.origin.site, Status.PENDING)
            out.others.append(Answer(*decided, resource=event.resource))

    def _accept(self, replica: Replica, event: Submitted, out: Effects) -> Operation:
        if not replica.history.ops and not replica.drafts:
            replica.set_type(self.settings.type_named(event.rtype))
        draft, self.clock = accept(replica, event, self.clock, self.matrices, out, self._now_ms)
        return draft

    # -- receiving ---------------------------------------------------------------------------------

    def _receive(self, replica: Replica, peer: str, message: Message, out: Effects) -> None:
        message = screened(message, peer, out)
        if message.dropped:
            tombstones.note_dropped(replica, peer, message, self._now_ms)
            return
        if tombstones.is_undecided(replica, message, self._now_ms):
            for site in self.up.keys() & set(replica.sites):
                exchange.ask(replica, site, out)
            return  # the sender sends it again
        if message.over and tombstones.is_dropped_here(replica, message, self.drops):
            exchange.report_dropped(replica, peer, message.known, out)
            message = tombstones.without_earlier_life(message)
        if proof := incarnation.proof_in(replica, message, self.drops):
            self.incarnations.close(replica.resource, proof.by(peer), self.clock, self._now_ms, out)
            return
        if incarnation.is_claimed(replica, message):
            exchange.recall(replica, peer, out, self._now_ms)
        report = message.report_of(peer) if message.for_others else None  # as it was signed
        message = without_more_of(replica.origin, message, replica.history.known, replica.replies.known)
        self._take(replica, peer, message, report, out)

    def _take(self, replica: Replica, peer: str, message: Message, report: Report | None, out: Effects) -> None:
        catch_up.consider(replica, peer, message, self.up, self._now_ms)
        message = snapshot.assembled(replica, peer, message, out, self._now_ms)
        if tombstones.is_dropped_here(replica, message, self.drops):
            catch_up.give_up(replica, peer, self._now_ms)
            exchange.report_dropped(replica, peer, message.known, out)
            return
        new = self.matrices.try_out(message.matrices)
        before, had, met = len(replica.history.ops), dict(replica.replies.known), set(replica.peers)
        orphans = set(replica.history.orphans)
        missing = exchange.take(replica, peer, message, self.matrices, out)
        self.matrices.save_used(replica, new, message.ops, out)
        contents.report_orphans(replica, orphans, out)
        if replica.history.latest:
            self.clock = self.clock.seen(replica.history.latest)
        if len(replica.history.ops) != before:
            self._learn_type(replica)
            clock = SiteClock(self.clock)  # after a crash this site's stamps must still be later than those it has seen
            out.documents[key_of(clock)] = clock
        incarnation.note_earlier_stores(replica, message, out)
        # A message of an earlier incarnation may arrive late: the peer's new store need not have what that one says.
        if self._stores.is_current(replica, peer, message):
            replica.take_report(peer, message, report, self._now_ms)
            contents.note_summary(replica, replica.peer(peer), message)
        if tombstones.may_be_same_life(replica, message):
            hub.take_reports(replica, message, partial(self._stores.is_current, replica), self._now_ms)
        hub.note_message(replica, peer, message, had, self.up, self._now_ms)
        for site in set(replica.targets()).difference(met, {peer}):
            replica.peer(site).leave_to_others()
        catch_up.note_taken(replica, peer, message, self.up, self._now_ms)
        statements.take(replica, peer, message)
        scheduler.advance(replica, out, self._now_ms)
        statements.answer(replica, peer, message, out)
        if message.ask or missing:
            replica.outbox.acknowledge(peer, missing)
        elif message.ops or message.replies:
            replica.outbox.acknowledge_later(peer)  # one acknowledgement per tick, however many messages come
        exchange.answer_recall(replica, peer, message, out, self._now_ms)
        if matrices := tuple(self.matrices[hash_] for hash_ in message.wanted if hash_ in self.matrices):
            exchange.send_matrices(replica, peer, matrices, out)
        hub.answer(replica, peer, message, out, self._now_ms)
        catch_up.attend(replica, peer, self.up, out, self._now_ms)


def _resource_of(event: Event) -> str:
    if isinstance(event, Received):
        return event.message.resource
    assert isinstance(event, _OF_A_RESOURCE)  # noqa: S101 - the others are registered above
    return event.resource
