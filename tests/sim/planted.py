"""Deliberate defects, to see whether the simulator would find them. They exist only here, as patches."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from cheops.engine import (
    admission,
    catch_up,
    contents,
    exchange,
    intake,
    outcome,
    replies,
    retention,
    scheduler,
    snapshot,
)
from cheops.engine.documents import Snapshot, key_of
from cheops.engine.events import Effect, Effects, Outcome, Save, Send
from cheops.engine.matrices import Matrices
from cheops.engine.progress import PeerProgress
from cheops.engine.replica import Replica
from cheops.log import history, names, plan, policy, rules, seals
from cheops.log.causality import Clock, Vector, contains, covers
from cheops.log.history import History
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, OpId, Reply, Verdict
from cheops.log.plan import Plan
from cheops.log.rules import Fate, Rule
from cheops.peers.gossip import GossipState
from cheops.peers.heartbeat import MembershipRecord
from cheops.peers.membership import Membership
from cheops.peers.settings import MeshSettings
from cheops.security import signatures
from cheops.sim import heartbeats
from tests.sim import planted_faults, planted_http

Bug = Callable[[], AbstractContextManager[object]]


def _no_causal_wait() -> AbstractContextManager[object]:
    return patch.object(exchange, "_follows", lambda _op, _known: True)


@contextmanager
def _duplicates_taken() -> Iterator[None]:
    def follows(op: Operation, known: Vector) -> bool:
        return covers(known, op.deps)

    with (
        patch.object(exchange, "contains", lambda _vector, _id: False),
        patch.object(exchange, "_follows", follows),
    ):
        yield


def _save_after_send() -> AbstractContextManager[object]:
    def late(self: Effects) -> list[Effect]:
        saves: list[Effect] = [Save(tuple(self.documents.values()), tuple(self.forget))]
        return [
            *(e for e in self.others if isinstance(e, Send)),
            *saves,
            *(e for e in self.others if not isinstance(e, Send)),
        ]

    return patch.object(Effects, "all", late)


def _answer_before_save() -> AbstractContextManager[object]:
    return patch.object(
        Effects, "all", lambda self: [*self.others, Save(tuple(self.documents.values()), tuple(self.forget))]
    )


@contextmanager
def _stamp_ties_unbroken() -> Iterator[None]:
    """As if clocks had seconds only: of two that tie, the one that comes last stays."""

    def rule(y: Operation, x: Operation, matrix: Matrix) -> Rule | None:
        found = true_rule(y, x, matrix)
        both = matrix.replaces(y.key, x.key) and matrix.replaces(x.key, y.key)
        if both and y.is_concurrent(x) and y.stamp.time_ms // 5_000 == x.stamp.time_ms // 5_000:
            return Rule.LAST_WRITER if y.id not in arrived or x.id in arrived else None
        return found

    true_rule = rules.superseding_rule
    arrived: set[object] = set()
    with patch.object(rules, "superseding_rule", rule):
        yield


def _replay_without_the_base() -> AbstractContextManager[object]:
    def wrong(*args: Any, **named: Any) -> Plan | None:
        found = true(*args, **named)
        return replace(found, run=found.run[1:]) if found and len(found.run) > 1 else found

    true = plan._from_last_base
    return patch.object(plan, "_from_last_base", wrong)


@contextmanager
def _void_that_supersedes() -> Iterator[None]:
    def fate(op: Operation) -> Fate | None:
        return Fate(Rule.BEATEN_AT_ORIGIN) if op.verdict is Verdict.SUPERSEDED else None

    with patch.object(history, "fate_at_origin", fate):
        yield


def _superseded_that_supersedes() -> AbstractContextManager[object]:
    def all_ever(self: History) -> list[Operation]:
        return [op for op in self.ops.values() if self.matrix.is_replace_type(op.key) and op.verdict is Verdict.OK]

    return patch.object(History, "heads", all_ever)


@contextmanager
def _fold_too_early() -> Iterator[None]:
    """A site makes checkpoints by what it has settled itself, and waits for no seal. (That it takes everything for
    stable was not found alone: without the statements of the others there is no seal, and nothing is forgotten.)"""
    with (
        patch.object(retention, "_stable", lambda replica: dict(replica.history.known)),
        patch.object(retention, "is_sealed", lambda _replica: True),
    ):
        yield


def _prune_what_others_lack() -> AbstractContextManager[object]:
    def prune_all(self: History, stable: object) -> list[object]:
        del stable
        gone = [op.id for op in self.ops.values() if op.id in self.fates and op is not self.site_list_op]
        for id_ in gone:
            del self.ops[id_]
            self.fates.pop(id_)
        return list(gone)  # and no floor: nobody is told that it is gone

    return patch.object(History, "prune", prune_all)


def _undefined_pairs_commute() -> AbstractContextManager[object]:
    def commutes(self: Matrix, one: str, other: str) -> bool:
        return not self.replaces(one, other) and not self.replaces(other, one)

    return patch.object(Matrix, "commutes", commutes)


def _crash_forgets_what_was_running() -> AbstractContextManager[object]:
    return patch.object(outcome, "after_crash", lambda *_: None)


def _timeout_is_simply_retried() -> AbstractContextManager[object]:
    return patch.object(outcome, "doubt", lambda *_: None)


def _clock_ignores_others() -> AbstractContextManager[object]:
    return patch.object(Clock, "seen", lambda self, _stamp: self)


def _everybody_hears() -> AbstractContextManager[object]:
    def everybody(self: Replica) -> list[str]:
        return [f"site{n}" for n in range(1, 4) if f"site{n}" != self.site]  # of 3

    return patch.object(Replica, "targets", everybody)


def _never_sent_again() -> AbstractContextManager[object]:
    return patch.object(catch_up, "send_missing", lambda *_: None)


def _newcomers_are_taken_to_know_everything() -> AbstractContextManager[object]:
    true = Replica.peer

    def trusting(self: Replica, site: str) -> PeerProgress:
        is_new = site not in self.peers
        progress = true(self, site)
        if is_new:
            progress.is_unknown = False
            progress.known, progress.known_replies = dict(self.history.known), dict(self.replies.known)
        return progress

    return patch.object(Replica, "peer", trusting)


def _failure_elsewhere_is_passed_over() -> AbstractContextManager[object]:
    def pretend(replica: Replica, op: Operation, ran: Outcome, out: Effects) -> None:
        replica.outbox.push(replies=(outcome._apply(replica, op, out, detail=ran.output),))

    return patch.object(outcome, "_handle_failure", pretend)


def _own_drafts_run_twice() -> AbstractContextManager[object]:
    """The draft is run again when it is met in the effective list."""
    true = outcome._apply

    def forgetful(replica: Replica, op: Operation, out: Effects, **named: Any) -> Reply:
        reply = true(replica, op, out, **named)
        if op.origin == replica.origin and not named.get("replay"):
            applied = replica.applied
            applied.entries.pop()
            applied.agreed = min(applied.agreed, len(applied.entries))
        return reply

    return patch.object(outcome, "_apply", forgetful)


@contextmanager
def _concurrent_by_stamp_alone() -> Iterator[None]:
    """Rule 4 forgotten: of two concurrent ones the later stamp stays, also if only one of them replaces."""

    def rule(y: Operation, x: Operation, matrix: Matrix) -> Rule | None:
        found = true(y, x, matrix)
        return None if found is Rule.REPLACE_WINS_OVER_CONCURRENT and y.stamp < x.stamp else found

    true = rules.superseding_rule
    with patch.object(rules, "superseding_rule", rule):
        yield


def _new_matrix_never_adopted() -> AbstractContextManager[object]:
    true = History._adopt

    def stubborn(self: History, op: Operation) -> int:
        if self.adopted is None:
            return true(self, op)
        return len(self.effective) if self._is_without_effect(op) else self._merge_in(op)

    return patch.object(History, "_adopt", stubborn)


def _settled_fates_judged_anew() -> AbstractContextManager[object]:
    """What an earlier matrix had superseded is judged anew, though some have forgotten it."""
    return patch.object(History, "_settled", lambda _self: {})


def _settled_means_passed_over() -> AbstractContextManager[object]:
    """That a site has settled an operation is taken for its last word, though its reply is on its way."""

    def hasty(replica: Replica, site: str) -> Vector:
        view = replica.peers.get(site)
        return replica.applied.settled if site == replica.site else view.settled if view else {}

    return patch.object(replies, "_settled_at", hasty)


def _copies_stay() -> AbstractContextManager[object]:
    """A site that has left takes any reply to the change of the list for its own copy being deleted."""

    def content(replica: Replica, by: Operation) -> bool:
        return replica.replies.get(by.id, replica.site) is not None

    return patch.object(scheduler, "has_deleted_copy", content)


def _nobody_vouches() -> AbstractContextManager[object]:
    """What begins a resource is refused from whoever is not on the list, though a site of it has taken it."""
    return patch.object(admission, "is_endorsed_by", lambda *_: False)


def _forgotten_lists_never_were() -> AbstractContextManager[object]:
    """An operation that was made under a list which is forgotten is taken for one that begins the resource."""
    return patch.object(policy, "_substitute_listing", lambda *_, **__: None)


# -- what a hostile site could do before (see docs/simulator.md) ---------------------------------------------


@contextmanager
def _ids_unchecked() -> Iterator[None]:
    """Ids are looked at only where clients send them."""
    with (
        patch.object(intake, "resource_problem", lambda _id: None),
        patch.object(intake, "_is_readable", lambda _name: True),
        patch.object(names, "command_problem", lambda _id: None),
    ):
        yield


def _revocations_evicted() -> AbstractContextManager[object]:
    """Any site makes decisions, and beyond a number of them that with the lowest stamp goes."""

    def take(self: Membership, record: MembershipRecord, wall_ms: float) -> bool:
        del wall_ms
        before = self.of(record.name)
        if before is not None and (record.stamp_ms, record.forgotten) <= (before.stamp_ms, before.forgotten):
            return False
        self._put(record)
        if len(self._records) > self._settings.max_members:
            oldest = min(self._records.values(), key=lambda one: one.stamp_ms)
            del self._records[oldest.name]
            self._news.drop(oldest.name)
        return True

    return patch.object(Membership, "take", take)


@contextmanager
def _decisions_unsigned() -> Iterator[None]:
    """Any site bans any other, with a stamp that no later decision outdoes."""
    with (
        patch.object(heartbeats.Keys, "check_decision", lambda *_: None),
        patch.object(MeshSettings, "latest_ms", lambda *_: float(2**53)),
    ):
        yield


@contextmanager
def _floors_believed() -> Iterator[None]:
    """A snapshot may say that anything was forgotten, and what it leaves out goes."""

    def replaced(_history: History, id_: OpId, snapshot: Snapshot, _folded: Vector) -> bool:
        return contains(snapshot.floor, id_)

    with (
        patch.object(admission, "_snapshot_lie", lambda *_: None),
        patch.object(snapshot, "_is_replaced", replaced),
        patch.object(snapshot, "_reply_floor", lambda _replica, _message, taken: dict(taken.reply_floor)),
    ):
        yield


def _counter_without_carry() -> AbstractContextManager[object]:
    """A stamp with the greatest counter leaves no room for the next one."""

    def tick(self: Clock, now_ms: int) -> Clock:
        return Clock(now_ms, 0) if now_ms > self.time_ms else Clock(self.time_ms, self.counter + 1)

    return patch.object(Clock, "tick", tick)


def _records_unsigned() -> AbstractContextManager[object]:
    """Any site says where any other is."""
    return patch.object(GossipState, "_check_entry", lambda *_: None)


def _files_of_any_size() -> AbstractContextManager[object]:
    """An operation is accepted whatever the size of its files."""
    return patch.object(admission, "files_problem", lambda *_: None)


@contextmanager
def _digests_without_contents() -> Iterator[None]:
    """Operations with the same id are taken for the same."""
    with (
        patch.object(contents, "compare", lambda *_: ()),
        patch.object(contents, "note_summary", lambda *_: None),
    ):
        yield


def _signatures_unchecked() -> AbstractContextManager[object]:
    """Every site speaks for every other."""
    return patch.object(signatures.Verifier, "check", lambda *_: None)


def _every_matrix_kept() -> AbstractContextManager[object]:
    """Matrices that no operation names stay for good."""

    def keep(self: Matrices, _replica: Replica, new: Iterable[Matrix], _ops: object, out: Effects) -> None:
        for matrix in new:
            self[matrix.hash] = matrix
            out.documents[key_of(matrix)] = matrix

    return patch.object(Matrices, "save_used", keep)


# -- what seals with statements prevent ----------------------------------------------------------------------
#
# Not planted, because no history that was tried shows them:
# - A site states what it has not settled (`statements._is_true`): the hostile site asks for such statements, but a seal
#   that takes the effect of what others made is refused, also if it has them (`policy.seal_violation`).
# - A site takes a resource that lists other sites only (`admission._absence`), or a second beginning of another type or
#   without known sites (`policy._beginning_violation`): it shows only where a site is added to a resource whose name
#   the hostile site took there before.


def _seals_without_statements() -> AbstractContextManager[object]:
    """A seal speaks for sites that have not signed it."""
    return patch.object(intake, "without_statement", lambda _sealing: [])


@contextmanager
def _lone_seals_orphan_others() -> Iterator[None]:
    """What a site sealed alone takes the effect of what other sites made. (The rule
    of `excludes` alone was not seen to matter: such a seal is refused where the list names other sites.)"""

    def excludes(by: Operation, op: Operation) -> bool:
        if by.seal is None or op == by or contains(by.deps, op.id):
            return False
        return not covers(op.deps, by.seal.stable)

    with (
        patch.object(seals, "excludes", excludes),
        patch.object(history, "excludes", excludes),
        patch.object(admission, "seal_violation", lambda *_: None),
    ):
        yield


def _checkpoints_beyond_their_seal() -> AbstractContextManager[object]:
    """A seal is taken to cover all that its author made before it."""

    def sealed(ops: Iterable[Operation]) -> Vector:
        return {origin: n for op in ops if op.seal for origin, n in {**op.seal.stable, op.origin: op.seq}.items()}

    return patch.object(retention, "sealed_by", sealed)


class Planted(NamedTuple):
    plant: Bug
    profile: str  # of a history that shows it at once, with its seed and its number of sites
    seed: int
    sites: int


BUGS = {
    "damaged documents are used": Planted(planted_faults.damage_unseen, "rot", 3, 3),
    "an old copy goes unnoticed": Planted(planted_faults.an_old_copy_goes_unnoticed, "restored", 0, 3),
    "what an earlier store ran is run again": Planted(
        planted_faults.what_an_earlier_store_ran_is_run_again, "lost", 32, 3
    ),
    "wrong stamps are kept": Planted(planted_faults.wrong_stamps_are_kept, "clocks", 0, 3),
    "no causal wait": Planted(_no_causal_wait, "hostile", 5, 3),
    "duplicates taken": Planted(_duplicates_taken, "hostile", 1, 3),
    "save after send": Planted(_save_after_send, "crashes", 55, 3),
    "answer before save": Planted(_answer_before_save, "crashes", 11, 3),
    "stamp ties unbroken": Planted(_stamp_ties_unbroken, "hostile", 1, 3),
    "replay without the base": Planted(_replay_without_the_base, "rules", 1, 3),
    "void that supersedes": Planted(_void_that_supersedes, "hostile", 2, 3),
    "superseded that supersedes": Planted(_superseded_that_supersedes, "crashes", 3, 3),
    "checkpoint too early": Planted(_fold_too_early, "rules", 14, 3),
    "prune what others lack": Planted(_prune_what_others_lack, "moving", 0, 4),
    "undefined pairs commute": Planted(_undefined_pairs_commute, "hostile", 38, 3),
    "crash forgets what was running": Planted(_crash_forgets_what_was_running, "crashes", 2, 3),
    "a timeout is simply retried": Planted(_timeout_is_simply_retried, "crashes", 1, 3),
    "the clock ignores others": Planted(_clock_ignores_others, "crashes", 0, 3),
    "everybody hears": Planted(_everybody_hears, "rules", 2, 3),
    "nothing is sent again": Planted(_never_sent_again, "crashes", 0, 3),
    "every message clears the pacing": Planted(planted_faults.every_message_clears_the_pacing, "quiet", 22, 4),
    "pieces are never sent again": Planted(planted_faults.pieces_are_never_sent_again, "joins", 37, 4),
    "newcomers are taken to know everything": Planted(_newcomers_are_taken_to_know_everything, "crashes", 2, 3),
    "a failure elsewhere is passed over": Planted(_failure_elsewhere_is_passed_over, "remedies", 1, 3),
    "own operations run twice": Planted(_own_drafts_run_twice, "crashes", 2, 3),
    "concurrent operations by stamp alone": Planted(_concurrent_by_stamp_alone, "crashes", 3, 3),
    "a new matrix is never adopted": Planted(_new_matrix_never_adopted, "rules", 45, 3),
    "what was superseded before is judged anew": Planted(_settled_fates_judged_anew, "rules", 21, 3),
    "settled means passed over": Planted(_settled_means_passed_over, "hostile", 0, 3),
    "copies stay": Planted(_copies_stay, "moving", 7, 4),
    "nobody vouches": Planted(_nobody_vouches, "policed", 70, 4),
    "forgotten lists never were": Planted(_forgotten_lists_never_were, "policed", 131, 4),
    "ids are not checked": Planted(_ids_unchecked, "byzantine", 3, 5),
    "revocations are evicted": Planted(_revocations_evicted, "byzantine", 1006, 5),
    "decisions are not signed": Planted(_decisions_unsigned, "byzantine", 6, 5),
    "floors are believed": Planted(_floors_believed, "byzantine", 67, 5),
    "the counter does not carry": Planted(_counter_without_carry, "byzantine", 46, 5),
    "site records are not signed": Planted(_records_unsigned, "byzantine", 6, 5),
    "files of any size": Planted(_files_of_any_size, "byzantine", 537, 5),
    "digests without contents": Planted(_digests_without_contents, "byzantine", 21, 5),
    "signatures are not checked": Planted(_signatures_unchecked, "byzantine", 0, 5),
    "every matrix is kept": Planted(_every_matrix_kept, "byzantine", 6, 5),
    "seals without statements": Planted(_seals_without_statements, "byzantine", 636, 5),
    "seals of one site orphan others": Planted(_lone_seals_orphan_others, "byzantine", 55, 5),
    "checkpoints beyond their seal": Planted(_checkpoints_beyond_their_seal, "members", 2, 5),
    "silence means lacking": Planted(planted_faults.silence_means_lacking, "hostile", 4, 3),
    "an earlier incarnation's view is kept": Planted(planted_faults.earlier_views_kept, "reborn", 0, 3),
    "forgotten before the superseder is known": Planted(
        planted_faults.forgotten_before_the_superseder_is_known, "members", 36, 4
    ),
    "leavers are never told": Planted(planted_faults.leavers_never_told, "moving", 0, 4),
    "interrupted replays are forgotten": Planted(planted_faults.interrupted_replays_forgotten, "remedies", 4, 3),
    "checkpoints without a seal": Planted(planted_faults.checkpoints_without_a_seal, "members", 0, 4),
    "what is superseded comes back": Planted(planted_faults.superseded_comes_back, "kinds", 34, 3),
    "dropped replies mean superseded": Planted(planted_faults.dropped_replies_mean_superseded, "members", 25, 4),
    "absence is denied": Planted(planted_faults.absence_is_denied, "members", 0, 4),
    "full queues refuse what they wait for": Planted(
        planted_faults.full_queues_refuse_what_they_wait_for, "members", 2, 4
    ),
    "tombstones are dropped without a promise": Planted(
        planted_faults.tombstones_are_dropped_without_a_promise, "deletions", 3, 4
    ),
    "numbers are given again": Planted(planted_faults.numbers_are_given_again, "deletions", 0, 4),
    "lives are mixed": Planted(planted_faults.lives_are_mixed, "deletions", 0, 4),
    "a POST is a resource of its own": Planted(planted_http.posts_are_resources, "http", 1, 3),
    "queries are ignored": Planted(planted_http.queries_are_ignored, "http", 3, 3),
    "a PUT of a part is ordered": Planted(planted_http.parts_are_ordered, "http", 15, 3),
    "no order between resources": Planted(planted_http.resources_have_no_order, "http", 43, 3),
    "a deletion forgets what it contains": Planted(planted_http.deletions_forget_contents, "http", 110, 3),
    "all is sent at once": Planted(planted_http.all_is_sent_at_once, "http", 229, 3),
}
