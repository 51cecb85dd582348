"""Deliberate defects, to see whether the simulator would find them. They exist only here, as patches."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from msgspec import structs

from cheops.engine import admission, catch_up, exchange, outcome, replies, retention, scheduler
from cheops.engine.events import Effect, Effects, Outcome, Save, Send
from cheops.engine.progress import PeerProgress
from cheops.engine.replica import Replica
from cheops.log import history, plan, policy, rules
from cheops.log.causality import Clock, Vector, covers
from cheops.log.history import History
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, Reply, Verdict
from cheops.log.plan import Plan
from cheops.log.rules import Fate, Rule
from cheops.sim.workload import PROFILES, Profile
from tests.engine import (
    test_contents,
    test_evidence,
    test_incarnations,
    test_matrices_and_refusals,
    test_retention,
    test_running,
    test_seal_attacks,
)
from tests.log import test_rules
from tests.sim import courses, planted_faults, planted_hostile, planted_http

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
    """As if clocks had seconds only: of two that tie, each takes the other's effect."""

    def rule(y: Operation, x: Operation, matrix: Matrix) -> Rule | None:
        both = matrix.replaces(y.key, x.key) and matrix.replaces(x.key, y.key)
        if both and y.is_concurrent(x) and y.stamp.time_ms // 5_000 == x.stamp.time_ms // 5_000:
            return Rule.LAST_WRITER
        return true_rule(y, x, matrix)

    true_rule = rules.superseding_rule
    with patch.object(rules, "superseding_rule", rule):
        yield


def _replay_without_the_base() -> AbstractContextManager[object]:
    def wrong(*args: Any, **named: Any) -> Plan | None:
        found = true(*args, **named)
        return structs.replace(found, run=found.run[1:]) if found and len(found.run) > 1 else found

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
    return patch.object(outcome, "doubt", lambda *_, **__: None)


def _clock_ignores_others() -> AbstractContextManager[object]:
    return patch.object(Clock, "seen", lambda self, _stamp: self)


def _everybody_hears() -> AbstractContextManager[object]:
    def everybody(self: Replica) -> list[str]:
        return [f"site{n}" for n in range(1, 4) if f"site{n}" != self.site]  # of 3

    return patch.object(Replica, "targets", everybody)


def _never_sent_again() -> AbstractContextManager[object]:
    return patch.object(catch_up, "send_missing", lambda *_: None)


def _newcomers_are_taken_to_know_everything() -> AbstractContextManager[object]:
    true = Replica.__init__

    def begun(self: Replica, *arguments: Any, **named: Any) -> None:
        true(self, *arguments, **named)
        view_of = self.peer

        def trusting(site: str) -> PeerProgress:
            is_new = site not in self.peers
            progress = view_of(site)
            if is_new:
                progress.is_unknown = False
                progress.known, progress.known_replies = dict(self.history.known), dict(self.replies.known)
            return progress

        self.peer = trusting

    return patch.object(Replica, "__init__", begun)


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


Course = Callable[[], None]  # fails with the bug, and not without


class Histories(NamedTuple):
    """Many of them show a bug: see `python -m tests.sim.shares`."""

    profile: Profile
    sites: int


class Planted(NamedTuple):
    plant: Bug
    shown_by: Histories | Course


def _histories(name: str, sites: int, **changes: Any) -> Histories:
    """Of a profile, in which something is more frequent, or left out."""
    return Histories(replace(PROFILES[name], **changes), sites)


def _hostile(tactic: str, **changes: Any) -> Histories:
    """Short ones, with a hostile site that does only this."""
    profile = replace(PROFILES["byzantine"], tactics=frozenset({tactic}), operations=10, duration_ms=3_000)
    return Histories(replace(profile, **changes), 4)


# Where fewer than one history in five would show a bug, a course of events does.
BUGS: dict[str, Planted] = {
    "damaged documents are used": Planted(planted_faults.damage_unseen, _histories("rot", 3)),
    "an old copy goes unnoticed": Planted(planted_faults.an_old_copy_goes_unnoticed, _histories("restored", 3)),
    "what an earlier store ran is run again": Planted(
        planted_faults.what_an_earlier_store_ran_is_run_again,
        test_incarnations.test_a_new_store_resets_what_the_application_had,
    ),
    "wrong stamps are kept": Planted(planted_faults.wrong_stamps_are_kept, _histories("clocks", 3)),
    "no causal wait": Planted(_no_causal_wait, _histories("hostile", 3)),
    "duplicates taken": Planted(_duplicates_taken, _histories("hostile", 3)),
    "save after send": Planted(_save_after_send, courses.a_crash_before_each_save),
    "answer before save": Planted(_answer_before_save, courses.a_crash_before_each_save),
    "stamp ties unbroken": Planted(_stamp_ties_unbroken, courses.two_sets),
    "replay without the base": Planted(_replay_without_the_base, _histories("rules", 3)),
    "void that supersedes": Planted(_void_that_supersedes, _histories("hostile", 3)),
    "superseded that supersedes": Planted(_superseded_that_supersedes, courses.a_set_that_a_deletion_beats),
    "checkpoint too early": Planted(_fold_too_early, courses.a_site_that_has_not_run_what_it_knows),
    "prune what others lack": Planted(_prune_what_others_lack, _histories("moving", 4)),
    "undefined pairs commute": Planted(_undefined_pairs_commute, courses.two_lines),
    "crash forgets what was running": Planted(_crash_forgets_what_was_running, _histories("crashes", 3)),
    "a timeout is simply retried": Planted(_timeout_is_simply_retried, _histories("crashes", 3)),
    "the clock ignores others": Planted(_clock_ignores_others, _histories("crashes", 3)),
    "everybody hears": Planted(_everybody_hears, _histories("rules", 3)),
    "nothing is sent again": Planted(_never_sent_again, _histories("crashes", 3)),
    "every message clears the pacing": Planted(
        planted_faults.every_message_clears_the_pacing,
        _histories("quiet", 4, tiny=1, site_changes=0.2, operations=120, resources=1),
    ),
    "pieces are never sent again": Planted(
        planted_faults.pieces_are_never_sent_again, courses.a_lost_piece_of_a_snapshot
    ),
    "newcomers are taken to know everything": Planted(
        _newcomers_are_taken_to_know_everything, _histories("crashes", 3)
    ),
    "a failure elsewhere is passed over": Planted(
        _failure_elsewhere_is_passed_over, test_running.test_on_error_runs_where_it_failed
    ),
    "own operations run twice": Planted(_own_drafts_run_twice, _histories("crashes", 3)),
    "concurrent operations by stamp alone": Planted(_concurrent_by_stamp_alone, _histories("crashes", 3)),
    "a new matrix is never adopted": Planted(
        _new_matrix_never_adopted, test_matrices_and_refusals.test_the_newest_matrix_is_adopted_everywhere_and_asked_for
    ),
    "what was superseded before is judged anew": Planted(
        _settled_fates_judged_anew,
        _histories("rules", 3, matrix_changes=0.3, apps=("file",), operations=80, partitions=8),
    ),
    "settled means passed over": Planted(_settled_means_passed_over, _histories("hostile", 3)),
    "copies stay": Planted(_copies_stay, _histories("moving", 4)),
    "nobody vouches": Planted(_nobody_vouches, courses.an_operation_under_a_list_from_before_a_site_joined),
    "forgotten lists never were": Planted(_forgotten_lists_never_were, courses.an_operation_under_a_forgotten_list),
    "ids are not checked": Planted(planted_hostile.ids_unchecked, _hostile("bad id")),
    "revocations are evicted": Planted(planted_hostile.revocations_evicted, _hostile("many decisions")),
    "decisions are not signed": Planted(planted_hostile.decisions_unsigned, _hostile("invented decisions")),
    "floors are believed": Planted(planted_hostile.floors_believed, courses.a_snapshot_that_hides_an_operation),
    "the counter does not carry": Planted(planted_hostile.counter_without_carry, courses.the_greatest_counter),
    "site records are not signed": Planted(planted_hostile.records_unsigned, _hostile("addresses")),
    "files of any size": Planted(planted_hostile.files_of_any_size, courses.a_file_that_is_too_large),
    "digests without contents": Planted(
        planted_hostile.digests_without_contents, test_contents.test_a_site_that_ran_the_wrong_one_replays_from_a_base
    ),
    "signatures are not checked": Planted(
        planted_hostile.signatures_unchecked, _hostile("forge", operations=40, duration_ms=5_000)
    ),
    "every matrix is kept": Planted(planted_hostile.every_matrix_kept, _hostile("matrices")),
    "seals without statements": Planted(planted_hostile.seals_without_statements, courses.a_seal_that_nobody_signed),
    "seals of one site orphan others": Planted(
        planted_hostile.lone_seals_orphan_others,
        test_seal_attacks.test_a_seal_that_comes_after_a_list_that_is_known_does_not_orphan_what_others_made,
    ),
    "checkpoints beyond their seal": Planted(
        planted_hostile.checkpoints_beyond_their_seal, courses.an_operation_between_the_statements_and_the_seal
    ),
    "silence means lacking": Planted(
        planted_faults.silence_means_lacking, test_evidence.test_after_a_rest_a_site_that_is_cut_off_has_what_it_had
    ),
    "absence means done": Planted(planted_faults.absence_means_done, _histories("joins", 4)),
    "an earlier incarnation's view is kept": Planted(planted_faults.earlier_views_kept, _histories("reborn", 3)),
    "forgotten before the superseder is known": Planted(
        planted_faults.forgotten_before_the_superseder_is_known, courses.a_superseder_that_is_withdrawn
    ),
    "leavers are never told": Planted(planted_faults.leavers_never_told, _histories("moving", 4)),
    "interrupted replays are forgotten": Planted(
        planted_faults.interrupted_replays_forgotten, courses.a_replay_that_is_refused_before_a_crash
    ),
    "checkpoints without a seal": Planted(
        planted_faults.checkpoints_without_a_seal,
        test_retention.test_a_site_that_comes_back_takes_the_checkpoint_of_one_that_was_alone,
    ),
    "what is superseded comes back": Planted(
        planted_faults.superseded_comes_back,
        test_rules.test_rule_2_what_was_superseded_does_not_come_back_with_its_superseder_beaten,
    ),
    "dropped replies mean superseded": Planted(
        planted_faults.dropped_replies_mean_superseded, courses.replies_that_were_dropped
    ),
    "absence is denied": Planted(planted_faults.absence_is_denied, _histories("members", 4)),
    "full queues refuse what they wait for": Planted(
        planted_faults.full_queues_refuse_what_they_wait_for, _histories("members", 4, loss=0.2, long_delay=0.2)
    ),
    "tombstones are dropped without a promise": Planted(
        planted_faults.tombstones_are_dropped_without_a_promise, _histories("deletions", 4)
    ),
    "promises never end": Planted(planted_faults.promises_never_end, _histories("deletions", 3)),
    "numbers are given again": Planted(planted_faults.numbers_are_given_again, _histories("deletions", 4)),
    "lone seals replace common ones": Planted(
        planted_faults.lone_seals_replace_common_ones, courses.a_seal_of_one_site_after_one_of_several
    ),
    "what was withdrawn is waited for": Planted(
        planted_faults.withdrawn_is_waited_for, test_incarnations.test_nobody_waits_for_ever_for_what_was_withdrawn
    ),
    "lives are mixed": Planted(planted_faults.lives_are_mixed, _histories("deletions", 4)),
    "a POST is a resource of its own": Planted(
        planted_http.posts_are_resources, _histories("http", 3, operations=20, crashes=0, trouble=0)
    ),
    "queries are ignored": Planted(planted_http.queries_are_ignored, courses.an_object_and_its_tags),
    "a PUT of a part is ordered": Planted(planted_http.parts_are_ordered, courses.a_part_that_is_put_at_two_sites),
    "no order between resources": Planted(planted_http.resources_have_no_order, courses.a_parent_and_its_child),
    "a deletion forgets what it contains": Planted(
        planted_http.deletions_forget_contents, courses.a_deletion_of_a_collection_that_another_site_hears_of_later
    ),
    "all is sent at once": Planted(
        planted_http.all_is_sent_at_once, courses.a_deletion_of_a_collection_while_something_is_put_there
    ),
    "creations are not noted": Planted(
        planted_http.creations_are_not_noted, courses.a_deletion_of_what_was_created_without_an_answer
    ),
}
