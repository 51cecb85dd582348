"""Short courses of events that lead to a situation which is rare in random histories. Nothing in them is random: each
goes well, and fails with the planted bug that it is for. Some are the test of an engine's part."""

import asyncio
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from cheops.engine.events import Effect, Event, Outcome, Ran, Run, Save, SitesRemoved
from cheops.engine.events import Result as Ended
from cheops.engine.settings import Checkpoint
from cheops.log.causality import contains
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import MAX_COUNTER, Command, FileRef, Kind, OpId, Stamp
from cheops.log.policy import Policy, SiteGroup
from cheops.sim import http_agreement
from cheops.sim.apps import COUNTER, FILE, OTHER_APPS, with_early_checkpoints
from cheops.sim.http_agent import Agent
from cheops.sim.http_service import Reply
from cheops.sim.http_world import Fate
from cheops.sim.node import Node
from cheops.sim.world import CrashError
from tests.engine import test_incarnations, test_retention, test_snapshot_attacks
from tests.engine.lab import Lab
from tests.engine.thief import begun, run, run_on, sealing, send, stolen, without_m
from tests.sim.test_http_doubt import (
    BOTH,
    HandWorld,
    test_a_deletion_reaches_what_was_created_without_an_answer,
    test_a_parent_and_its_child_at_the_same_time_have_one_order,
)

_POLICY = Policy(sites=SiteGroup.INVOLVED, matrix=SiteGroup.INVOLVED)
_SECONDS = 60  # of virtual time: enough for what is lost to be sent again


def _early_checkpoint() -> Checkpoint | None:
    return with_early_checkpoints(COUNTER.type).checkpoint


def _go_on(lab: Lab) -> None:
    """One event after the other: the next message, or the next tick."""
    if lab.flights:
        lab.deliver(lab.flights[0])
    else:
        lab.pass_time()


# -- concurrent operations ---------------------------------------------------------------------------------------


def _written_apart(one: str, other: str, app: Any = COUNTER) -> Lab:
    lab = Lab("ab")
    lab.make("n", app, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.write_apart("n", one, other)
    lab.heal()
    lab.run()
    return lab


def two_sets() -> None:
    assert _written_apart("set 2", "set 3").states("n", "ab") == [3, 3]


def two_lines() -> None:
    assert _written_apart("add p", "add q", FILE).states("n", "ab") == [("1", "p", "q")] * 2


def a_set_that_a_deletion_beats() -> None:
    """After the deletion its site counts on, without knowing of the set."""
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.partition("a", "b")
    lab.submit("a", "n", "set 0", Kind.DELETE)
    lab.submit("a", "n", "inc 5")
    lab.submit("b", "n", "set 7")
    lab.heal()
    lab.run()
    assert lab.states("n", "ab") == [5, 5]


# -- crashes -----------------------------------------------------------------------------------------------------


class _CrashingLab(Lab):
    """Site a stops just before one of its saves, and starts again."""

    def __init__(self, save: int) -> None:
        self._until = save
        super().__init__("ab")

    @property
    def has_crashed(self) -> bool:
        return self._until <= 0

    def _carry_out(self, node: Node, effect: Effect) -> None:
        if isinstance(effect, Save) and node.name == "a":
            self._until -= 1
            if self._until == 0:
                raise CrashError
        super()._carry_out(node, effect)

    def take(self, name: str, event: Event) -> None:
        try:
            super().take(name, event)
        except CrashError:
            self._pending.clear()
            self.crash("a")
            self.restart("a")


def a_crash_before_each_save() -> None:
    save = 1
    while _survives_crash_before(save):
        save += 1
    assert save > 5, "a site saves something for each operation"


def _survives_crash_before(save: int) -> bool:
    """Whether there is such a save. What a site has said, it has."""
    lab = _CrashingLab(save)
    lab.make("f", FILE, "ab")
    for line in ("set x", "add p", "add q"):
        lab.submit("a", "f", line)
        lab.run()
    assert lab.at("a", "f").history.ops == lab.at("b", "f").history.ops
    answers = [line.split()[2] for line in lab.output if line.startswith("a answers: ") and line.endswith(" is OK")]
    assert set(answers) <= {str(id_) for id_ in lab.at("a", "f").history.ops}
    return lab.has_crashed


def a_replay_that_is_refused_before_a_crash() -> None:
    """An operation fails at a, and runs in units, of which two succeed before a timeout. So all is to be replayed; the
    application refuses that, and a crashes."""
    lab = Lab("ab")
    lab.make("n", OTHER_APPS["stock"], "ab")
    lab.submit("a", "n", "dec 1")
    lab.run()
    lab.write_apart("n", "dec 2", "dec 4")
    lab.benches["a"].paused = True
    lab.heal()
    lab.take("a", Ran("n", _next_run(lab).n, (Outcome(Ended.KO, "too few"),)))
    units = _next_run(lab)
    done = lab.execute("a", replace(units, steps=units.steps[:2]))
    lab.take("a", Ran("n", units.n, (*done, Outcome(Ended.MAYBE, "timeout"))))
    replay = _next_run(lab)
    assert replay.replay
    lab.take("a", Ran("n", replay.n, (Outcome(Ended.RETRY, "connection refused"),)))
    lab.crash("a")
    lab.restart("a")
    run(lab, 3)
    assert lab.states("n", "ab") == [18, 18]


def _next_run(lab: Lab) -> Run:
    while not lab.benches["a"].held:
        _go_on(lab)
    return lab.benches["a"].held.pop()


# -- what is forgotten -------------------------------------------------------------------------------------------


def a_site_that_has_not_run_what_it_knows() -> None:
    """It still runs an operation of its own, which all of that supersedes."""
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab", checkpoint=_early_checkpoint())
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.benches["b"].paused = True
    lab.submit("b", "n", "set 100")
    lab.now_ms += 1_000
    for line in ("set 5", *["inc 1"] * 8):
        lab.submit("a", "n", line)
        run_on(lab, 3)
    lab.resume("b")
    run_on(lab, _SECONDS)
    assert lab.states("n", "ab") == [13, 13]


def an_operation_between_the_statements_and_the_seal() -> None:
    """No other site has signed that it is sealed, and a site that joins takes no checkpoint that the seal does not
    cover."""
    lab = Lab("abc")
    lab.make("n", COUNTER, "ab", checkpoint=_early_checkpoint())
    for line in ("set 1", "set 2", "set 3"):
        lab.submit("a", "n", line)
    while not any(flight.message.statements for flight in lab.flights):
        _go_on(lab)
    for _ in range(4):
        lab.submit("a", "n", "inc 1")
    run_on(lab, _SECONDS)
    assert lab.at("a", "n").history.folded, "there is a checkpoint"
    lab.move("a", "n", "abc")
    run_on(lab, _SECONDS)
    assert lab.states("n", "abc") == [7] * 3


def _b_is_forgotten(sites: str) -> Lab:
    """b is forgotten and writes. Meanwhile a is alone on the list, and has forgotten the one that named both."""
    lab = Lab(sites)
    lab.make("n", COUNTER, "ab", checkpoint=None, policy=_POLICY)
    lab.submit("a", "n", "set 1")
    run(lab, 2)
    lab.partition(sites.replace("b", ""), "b")
    lab.take("a", SitesRemoved(frozenset("b")))
    lab.submit("b", "n", "inc 7")
    matrix = Matrix((*COUNTER.matrix.entries, Entry("never", "used", Result.TAKE_BOTH)))
    lab.submit("a", "n", "set 2", matrix=matrix)  # otherwise the first operation is kept for its matrix
    lab.move("a", "n", "a")
    for number in range(6):
        lab.submit("a", "n", f"set {number}")
        run(lab, 1)
    assert not any("b" in (op.sites or ()) for op in lab.at("a", "n").history.ops.values()), "it is forgotten"
    return lab


def _b_is_admitted(lab: Lab) -> None:
    for site in lab.nodes:
        lab.take(site, SitesRemoved(frozenset(), frozenset("b")))
    lab.heal()
    run_on(lab, _SECONDS)


def an_operation_under_a_forgotten_list() -> None:
    lab = _b_is_forgotten("ab")
    _b_is_admitted(lab)
    assert contains(lab.at("a", "n").history.known, OpId(lab.nodes["b"].origin, 1))


def an_operation_under_a_list_from_before_a_site_joined() -> None:
    """The new site never heard that b was on a list, except from a, which has taken what b made."""
    lab = _b_is_forgotten("abd")
    lab.move("a", "n", "ad")
    run(lab, 3)
    assert "b" not in lab.at("d", "n").history.ever_listed
    _b_is_admitted(lab)
    for site in "ad":
        assert contains(lab.at(site, "n").history.known, OpId(lab.nodes["b"].origin, 1))


def a_superseder_that_is_withdrawn() -> None:
    """c makes it under a wrong clock while it is cut off. Once the clock is right, what was superseded counts again,
    until the other one is issued anew."""
    lab = Lab("abc")
    lab.make("n", COUNTER, "abc", checkpoint=None)
    for line in ("set 1", "set 2", "set 3"):
        lab.submit("a", "n", line)
    run(lab, 6)
    assert lab.at("c", "n").history.floor, "something is sealed and forgotten"
    lab.partition("ab", "c")
    lab.nodes["c"].skew_ms = test_incarnations.HOUR_MS
    lab.submit("c", "n", "set 4")
    lab.pass_time(2_000)
    test_incarnations.cure(lab, "c")
    lab.pass_time(1_000)
    assert lab.states("n", "abc") == [3] * 3
    lab.heal()
    run(lab, 3)
    assert lab.states("n", "abc") == [4] * 3


def replies_that_were_dropped() -> None:
    """b and c have run an operation of a, and have forgotten it and their replies, before a hears of them again."""
    lab = Lab("abc")
    lab.make("n", COUNTER, "abc", checkpoint=None)
    lab.submit("a", "n", "set 1")
    run(lab, 2)
    lab.submit("a", "n", "set 2")
    for flight in list(lab.flights):
        lab.deliver(flight)
    lab.partition("a", "bc")
    for site in "bc":
        lab.take(site, SitesRemoved(frozenset("a")))
    for number in range(6):
        lab.submit("b", "n", f"set {number}")
        run(lab, 1)
    assert OpId(lab.nodes["a"].origin, 2) not in lab.at("b", "n").history.ops, "it is forgotten"
    for site in "abc":
        lab.take(site, SitesRemoved(frozenset(), frozenset("a")))
    lab.heal()
    run(lab, 4)
    assert "a answers: a:2 is OK" in lab.output
    assert not any("a:2 is SUPERSEDED at" in line for line in lab.output)


def a_seal_of_one_site_after_one_of_several() -> None:
    test_retention.test_what_several_sites_sealed_orphans_also_after_one_of_them_sealed_more_alone(None)


def a_lost_piece_of_a_snapshot() -> None:
    lab = Lab("ab", batch=2, batch_bytes=1_500)
    lab.make("n", COUNTER, "a", checkpoint=None)
    for lines in (["set 1", "set 2", "set 3"], ["inc 1"] * 12):
        for line in lines:
            lab.submit("a", "n", line)
        run(lab, 3)
    lab.move("a", "n", "ab")
    while not (pieces := [flight for flight in lab.flights if flight.message.piece]):
        _go_on(lab)
    lab.flights.remove(pieces[0])
    run_on(lab, _SECONDS)
    assert lab.states("n", "ab") == [15, 15]


# -- somebody has the keys of a site -----------------------------------------------------------------------------


def a_file_that_is_too_large() -> None:
    lab = begun()
    without_m(lab)
    files = (FileRef("f", "0" * 64, lab.settings.limits.file_bytes + 1),)
    send(lab, "b", stolen(lab, "inc 7", payload=Command("inc 7", files)))
    run(lab, 3)
    assert lab.states("n", "abc") == [1] * 3


def the_greatest_counter() -> None:
    lab = begun()
    without_m(lab)
    stamp = Stamp(lab.now_ms + 5_000, MAX_COUNTER, lab.nodes["m"].origin)
    send(lab, "b", stolen(lab, "inc 7", stamp=stamp))
    lab.submit("b", "n", "inc 1")
    run(lab, 3)
    assert lab.states("n", "abc") == [9] * 3
    assert all(op.stamp.counter <= MAX_COUNTER for op in lab.at("b", "n").history.ops.values())


def a_seal_that_nobody_signed() -> None:
    """It is made without knowledge of what c made, and names c."""
    lab = begun()
    stable = {**lab.at("m", "n").history.known, lab.nodes["m"].origin: 1}
    root = lab.at("a", "n").history.earliest
    ops = stolen(lab, "inc 100"), sealing(lab, stable, "abcm", (), seq=2, deps=stable, root=root)
    lab.submit("c", "n", "inc 5")
    without_m(lab)
    run(lab, 2)
    for site in "abc":
        send(lab, site, *ops)
    run(lab, 3)
    assert lab.states("n", "abc") == [106] * 3


def a_snapshot_that_hides_an_operation() -> None:
    test_snapshot_attacks.test_a_snapshot_does_not_say_what_has_no_effect(hidden=True)


# -- HTTP services -----------------------------------------------------------------------------------------------


class _SlowWorld(HandWorld):
    """What site1 puts is there at once, and the answer comes late."""

    async def call_service(self, agent: Agent, name: str, method: str, target: str, body: bytes) -> Reply:
        reply = await super().call_service(agent, name, method, target, body)
        if method == "PUT" and agent.name == "site1":
            await asyncio.sleep(0.2)
        return reply


def a_deletion_of_a_collection_while_something_is_put_there() -> None:
    _put_and_delete()


def a_deletion_of_a_collection_that_another_site_hears_of_later() -> None:
    _put_and_delete(cut={BOTH, BOTH[::-1]})


def _put_and_delete(cut: Collection[tuple[str, str]] = ()) -> None:
    world = _SlowWorld()
    world.ask("site1", "files", "MKCOL", "/d", {})
    world.cut |= set(cut)
    world.begin("site1", "files", "PUT", "/d/f", {"value": "x"})
    world.run_until(world.now_ms + 50)
    world.begin("site1", "files", "DELETE", "/d", {})
    world.pass_s(5)
    world.cut.clear()
    world.pass_s(5)
    world.ask("site2", "files", "MKCOL", "/d", {})  # from now on the file can be put there
    _end(world)


def a_part_that_is_put_at_two_sites() -> None:
    world = HandWorld(BOTH)
    resource = world.ask("site1", "notes", "POST", "/notes", {"text": "x"}).resource
    world.cut |= {BOTH, BOTH[::-1]}
    for site in BOTH:
        world.ask(site, "notes", "PUT", f"/notes/{resource}/tags/red", {"value": site})
    world.cut.clear()
    _end(world)


def an_object_and_its_tags() -> None:
    """The other site hears of both at once."""
    world = HandWorld(BOTH)
    world.ask("site1", "store", "PUT", "/b", {"made": "x"})
    world.cut |= {BOTH, BOTH[::-1]}
    for path in ("/b/k", "/b/k?tagging"):
        world.ask("site1", "store", "PUT", path, {"value": "y"})
    world.cut.clear()
    _end(world)


def _end(world: HandWorld) -> None:
    world.pass_s(10)
    world.refresh()
    world.pass_s(2)
    problems = http_agreement.problems(world)
    world.close()
    assert not problems


def a_parent_and_its_child() -> None:
    world = HandWorld(BOTH)
    test_a_parent_and_its_child_at_the_same_time_have_one_order(world, "/b")
    world.close()


def a_deletion_of_what_was_created_without_an_answer() -> None:
    world = HandWorld(BOTH)
    test_a_deletion_reaches_what_was_created_without_an_answer(world, Fate.DONE)
    world.close()
