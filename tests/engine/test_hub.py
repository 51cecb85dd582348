"""What sites hear of each other through the hub, and what they do when it is not there."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from cheops.engine.documents import Message
from cheops.engine.events import Received
from cheops.engine.progress import PeerProgress
from cheops.engine.status import Overall
from cheops.log.operation import MAX_NUMBER, Origin
from cheops.peers.envelope import pack, unpack
from cheops.sim.apps import COUNTER
from cheops.sim.scripted_world import Flight
from tests.engine.lab import Lab


def begun(sites: str = "abcd") -> Lab:
    lab = Lab(sites, seal_after=50)
    lab.make("n", COUNTER, sites, checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    return lab


def overall(lab: Lab, site: str) -> Overall:
    return lab.status(site, "n").overall


def run_without(lab: Lab, is_lost: Callable[[Flight], bool], rounds: int = 40) -> list[Flight]:
    """Let some time pass. Some messages are lost; return those."""
    lost = []
    for _ in range(rounds):
        for flight in list(lab.flights):
            if is_lost(flight):
                lab.flights.remove(flight)
                lost.append(flight)
            else:
                lab.deliver(flight)
        lab.pass_time()
    return lost


def test_replies_go_to_the_hub_alone_which_passes_them_on() -> None:
    lab = begun()
    lab.submit("a", "n", "inc 1")
    pairs: set[tuple[str, str]] = set()
    lab.settle(lambda flight: pairs.add((flight.sender, flight.peer)))
    assert pairs == {(one, other) for one in "abcd" for other in "abcd" if one != other and "a" in (one, other)}
    assert {overall(lab, site) for site in "abcd"} == {Overall.CONVERGED}
    assert all(lab.at(site, "n").replies.known == lab.at("a", "n").replies.known for site in "bcd")


def test_what_the_hub_passed_on_and_was_lost_is_pulled() -> None:
    lab = begun()
    lab.submit("a", "n", "inc 1")
    lost = run_without(lab, lambda flight: bool(flight.message.reports) and flight.peer == "d", rounds=5)
    assert lost
    assert overall(lab, "d") is Overall.CONVERGING, "it has not heard that b and c are done"
    lab.run()
    assert overall(lab, "d") is Overall.CONVERGED


def test_the_others_finish_when_the_hub_dies_in_the_middle() -> None:
    """a makes an operation that only b gets. d and c get it from b, and all hear of all, while a is down."""
    lab = begun()
    lab.submit("a", "n", "inc 1")
    run_without(lab, lambda flight: flight.sender == "a" and flight.peer != "b", rounds=1)
    lab.crash("a")
    lab.run()
    assert lab.states("n", "bcd") == [2, 2, 2]
    known = lab.at("b", "n").replies.known
    assert all(lab.at(site, "n").replies.known == known for site in "cd")
    lab.restart("a")
    lab.run()
    assert {overall(lab, site) for site in "abcd"} == {Overall.CONVERGED}


def test_a_hub_that_lost_its_store_does_not_keep_the_others_from_each_other() -> None:
    lab = begun()
    lab.submit("a", "n", "inc 1")
    # It has all replies, and passes none of them on.
    run_without(lab, lambda flight: flight.sender == "a" and bool(flight.message.reports), rounds=3)
    lab.lose_disk("a")
    lab.restart("a")
    lab.run()
    assert {overall(lab, site) for site in "abcd"} == {Overall.CONVERGED}
    known = lab.at("b", "n").replies.known
    assert all(lab.at(site, "n").replies.known == known for site in "acd")


def test_a_site_that_the_hub_cannot_reach_gets_the_operation_from_another_one() -> None:
    lab = begun()
    lab.set_cut({("a", "d"), ("d", "a")})
    lab.submit("a", "n", "inc 1")
    run_without(lab, lambda _flight: False, rounds=15)  # less than it takes until a site pulls
    assert lab.states("n", "d") == [2]


def test_an_older_report_does_not_replace_what_is_known() -> None:
    lab = begun()
    passed: list[tuple[str, Message]] = []
    lab.submit("a", "n", "inc 1")
    lab.settle(lambda flight: passed.append((flight.peer, flight.message)))
    old = next(message for peer, message in passed if peer == "c" and message.reports)
    lab.submit("b", "n", "inc 2")
    lab.run()
    before = {site: view_at(lab, site) for site in "bd"}
    lab.take("c", Received("a", replace(old, ops=(), replies=())))
    assert {site: view_at(lab, site) for site in "bd"} == before


def view_at(lab: Lab, site: str) -> tuple[object, ...]:
    view = lab.at("c", "n").peers[site]
    return view.known, view.settled, view.digest, view.last_report


def test_a_report_of_a_site_that_never_took_part_is_ignored() -> None:
    lab = begun("abc")
    lab.submit("a", "n", "inc 1")
    passed: list[Message] = []
    lab.settle(lambda flight: passed.append(flight.message) if flight.peer == "c" else None)
    message = next(one for one in passed if one.reports)
    (report,) = message.reports
    stranger = replace(report, origin=Origin("x", "1"))
    lab.take("c", Received("a", replace(message, ops=(), replies=(), reports=(stranger,))))
    assert "x" not in lab.at("c", "n").peers


def test_a_report_of_any_age_can_be_passed_on_further() -> None:
    """For how long a hub has had a report is its own word, and not signed."""
    lab = begun()
    lab.submit("a", "n", "inc 1")
    passed: list[Message] = []
    lab.settle(lambda flight: passed.append(flight.message) if flight.peer == "c" else None)
    message = next(one for one in passed if one.reports)
    later = tuple(replace(one, number=one.number + 1) for one in message.reports)
    oldest = (MAX_NUMBER,) * len(later)
    lab.take("c", Received("a", replace(message, ops=(), replies=(), reports=later, ages=oldest)))
    lab.pass_time(1_000)
    lab.flights.clear()
    lab.take("c", Received("d", Message("n", "1", pull=True)))
    (answer,) = [flight.message for flight in lab.flights if flight.message.reports]
    assert {report.number for report in later} & {report.number for report in answer.reports}
    assert unpack(pack("c", [answer])).refused == []


def test_a_site_with_a_name_that_nobody_reads_does_not_spoil_what_the_hub_passes_on() -> None:
    """The store of a site is named by the site itself, in each of its messages."""
    lab = begun()
    stolen = lab.nodes["c"].origin
    said = Message("n", "1.\x00", known={stolen: 1}, number=10**13, for_others=True, signature="c2lnbmVk")
    for message in unpack(pack("c", [said])).messages:
        lab.take("a", Received("c", message))
    lab.flights.clear()
    lab.take("a", Received("d", Message("n", "1", pull=True)))
    (answer,) = [flight.message for flight in lab.flights if flight.message.reports]
    assert "b" in {report.origin.site for report in answer.reports}
    assert unpack(pack("a", [answer])).refused == []


def test_a_report_that_names_thousands_of_stores_is_not_passed_on() -> None:
    """It would be sent to every site, by each hub, and packed between two heartbeats."""
    lab = begun()
    made_up = {Origin("c", f"{number:0900}"): 1 for number in range(1_000)}
    said = Message(
        "n", "1", known={lab.nodes["c"].origin: 1, **made_up}, number=10**13, for_others=True, signature="c2ln"
    )
    lab.take("a", Received("c", said))
    lab.flights.clear()
    lab.take("a", Received("d", Message("n", "1", pull=True)))
    (answer,) = [flight.message for flight in lab.flights if flight.message.reports]
    assert {report.origin.site for report in answer.reports} == {"b"}
    assert len(pack("a", [answer])) < 10_000


def test_a_site_that_is_named_again_and_again_costs_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = begun()
    taken: list[PeerProgress] = []

    def note(view: PeerProgress) -> None:
        taken.append(view)

    monkeypatch.setattr(PeerProgress, "take_charge", note)
    lab.take("b", Received("a", Message("n", "1", unreached=("c",) * 1_000)))
    assert taken == [lab.at("b", "n").peer("c")]


def test_a_second_reply_to_an_operation_goes_to_all_sites_itself() -> None:
    """Nobody expects it, so nobody would ask for it if the hub were gone."""
    lab = begun("abc")
    lab.submit("a", "n", "inc 1")
    lab.run()
    reply = lab.at("b", "n").replies.get(max(lab.at("b", "n").history.ops), "b")
    assert reply is not None
    again = replace(reply, n=reply.n + 1)
    replica = lab.at("b", "n")
    replica.replies.take(again)
    assert not replica.replies.is_first(again)


def test_a_report_that_is_passed_on_late_is_as_old_as_it_is() -> None:
    """Otherwise a status would show a report of just now, of a site that was cut off long ago."""
    lab = begun("abc")
    lab.submit("a", "n", "inc 1")
    run_without(lab, lambda flight: flight.peer == "c" and bool(flight.message.reports), rounds=3)
    heard_ms = lab.at("a", "n").peers["b"].report_ms
    lab.partition("b", "ac")
    lab.run()  # c pulls from a
    found = lab.at("c", "n").peers["b"]
    assert found.settled == lab.at("c", "n").history.known
    assert found.last_contact_ms is not None
    assert found.last_contact_ms <= heard_ms
