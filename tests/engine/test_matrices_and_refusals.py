"""Which matrix is in force at a site's engine, and which submissions it refuses."""

from dataclasses import replace

from msgspec import structs

from cheops.engine.events import Answer, Loaded, Stage, Submitted
from cheops.engine.settings import Limits, Settings
from cheops.engine.site import Site
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, Origin
from cheops.sim.apps import COUNTER, SET
from tests.engine.lab import Lab


def test_the_newest_matrix_is_adopted_everywhere_and_asked_for() -> None:
    lab = Lab("ab")
    lab.make("f", SET, "ab")
    lab.submit("a", "f", "clear")
    lab.run()
    commuting = Matrix((*SET.matrix.entries, Entry("add", "remove", Result.TAKE_BOTH)))
    lab.partition("a", "b")
    lab.submit("a", "f", "add x", matrix=commuting)
    lab.submit("b", "f", "add y")
    lab.heal()
    lab.run()
    assert {lab.at(site, "f").matrix.hash for site in "ab"} == {commuting.hash}
    assert lab.states("f", "ab") == [frozenset("xy")] * 2


def test_a_site_that_lacks_a_matrix_asks_for_it_and_waits() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 5")
    lab.flights = [replace(flight, message=structs.replace(flight.message, matrices=())) for flight in lab.flights]
    lab.deliver(lab.flights[0])
    assert lab.at("b", "n").inbox.waiting
    assert lab.states("n", "b") == [0]
    assert [flight.message.wanted for flight in lab.flights] == [(COUNTER.matrix.hash,)]
    lab.run()
    assert lab.states("n", "ab") == [5, 5]


def test_a_submission_is_refused_with_the_reason() -> None:
    site = Site(Origin("a", "1"), Settings(limits=Limits(drafts=1)))
    site.step(Submitted("r0", "x", "inc", Command("")), 1)
    site.step(Loaded("x", ()), 1)

    def refused(event: Submitted) -> str:
        answers = [effect for effect in site.step(event, 1) if isinstance(effect, Answer)]
        return answers[0].detail if answers[0].stage is Stage.REFUSED else ""

    new = Submitted("r", "x", "inc", Command("inc 1"))
    assert refused(new) == "name the sites of the resource"
    assert refused(structs.replace(new, kind=Kind.SITES, sites=("a",))) == "no such resource is known here"
    assert refused(structs.replace(new, sites=("b", "c"))) == "this site, a, is not involved; the resource is at b, c"
    assert refused(structs.replace(new, sites=("a", "b"))) == ""
    assert refused(structs.replace(new, sites=("a", "c"))) == "1 operations are waiting already; try again later"


def test_exec_cannot_move_a_resource_by_accident() -> None:
    lab = Lab()
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.take("a", Submitted("r", "n", "inc", Command("inc 1"), sites=("a", "c")))
    assert "the resource is at a, b; use 'cheops sites' to change that" in lab.output[-1]


def test_the_matrix_in_force_outlives_the_operation_that_brought_it() -> None:
    lab = Lab("ab")
    lab.make("n", COUNTER, "ab")
    lab.submit("a", "n", "set 0")
    lab.run()
    newer = Matrix((*COUNTER.matrix.entries, Entry("inc", "dec", Result.TAKE_BOTH)))
    lab.submit("a", "n", "inc 1", matrix=newer)
    for _ in range(12):
        lab.submit("b", "n", "inc 1")
        lab.run()
    assert lab.at("a", "n").applied.base
    for site in "ab":
        lab.crash(site)
        lab.restart(site)
    lab.run()
    assert {lab.at(site, "n").matrix.hash for site in "ab"} == {newer.hash}
