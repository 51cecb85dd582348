"""Reports that one site passes on for another: whose word they are."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from cheops.engine.documents import Message, Report
from cheops.engine.events import Event, Received
from cheops.log.operation import OpId, Origin, Reply, Status, hash_of_output
from cheops.peers.heartbeat import MembershipRecord
from cheops.peers.intake import DocumentIntake, Engine
from cheops.sim.node import Node
from cheops.sim.wire import Wire
from cheops.sim.workload import PROFILES
from cheops.sim.world import World

SITES = ("site1", "site2", "site3")
A = Origin("site1", "1")
SAID = Message("n", "1", known={A: 1}, known_replies={A: 1}, settled={A: 1}, digest="d", number=7, for_others=True)


def make_wire(member: MembershipRecord | None = None) -> tuple[Wire, Node]:
    """The keys of all sites, and a receiver, site3. `member` is what was decided about site2."""
    node = World(1, SITES, PROFILES["calm"]).nodes["site3"]
    return Wire(SITES, lambda _site: 1_000_000, lambda _here, site: member if site == "site2" else None), node


def passed_on(wire: Wire, change: Callable[[Report], Report] = lambda one: one, resource: str = "n") -> Message:
    """What site1 sends after site2 has reported to it."""
    report = wire.with_report("site2", SAID).report_of("site2")
    return Message(resource, "1", known={A: 1}, reports=(change(report),), ages=(5,))


def taken(wire: Wire, node: Node, message: Message, sender: str = "site1") -> Message:
    (found,) = wire.unpack(node, sender, wire.pack(sender, message))
    return found


def test_a_report_with_the_signature_of_its_site_is_taken() -> None:
    wire, node = make_wire()
    found = taken(wire, node, passed_on(wire))
    assert [one.origin.site for one in found.reports] == ["site2"]
    assert found.ages == (5,)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, digest="e"),
        lambda one: replace(one, settled={A: 2}),
        lambda one: replace(one, number=8),
        lambda one: replace(one, closed=True),
        lambda one: replace(one, origin=Origin("site3", "1")),
        lambda one: replace(one, signature=""),
        lambda one: replace(one, signature="AAAA"),
    ],
    ids=["digest", "settled", "number", "closed", "another site", "unsigned", "malformed"],
)
def test_a_changed_report_is_dropped_and_counted(change: Callable[[Report], Report]) -> None:
    wire, node = make_wire()
    found = taken(wire, node, passed_on(wire, change))
    assert (found.reports, found.ages) == ((), ())
    assert found.known == {A: 1}, "the rest of the message counts"
    assert sum(wire.refused.reasons.values()) == 1


def test_a_report_on_another_resource_is_dropped() -> None:
    wire, node = make_wire()
    assert taken(wire, node, passed_on(wire, resource="m")).reports == ()


def test_a_report_with_a_key_from_before_its_site_was_forgotten_is_dropped() -> None:
    """The site was admitted again, and somebody else may have its old key."""
    wire, node = make_wire(MembershipRecord("site2", 500_000, forgotten=False))
    assert taken(wire, node, passed_on(wire)).reports == ()


def test_only_what_its_sender_signed_is_passed_on() -> None:
    wire, node = make_wire()
    assert taken(wire, node, SAID, "site2").for_others
    wire, node = make_wire(MembershipRecord("site2", 500_000, forgotten=False))
    found = taken(wire, node, SAID, "site2")
    assert (found.for_others, found.signature, found.known) == (False, "", {A: 1})


# -- several of them in few bytes ------------------------------------------------------------------------

MANY = tuple(f"site{number}" for number in range(1, 9))


def many_reports(wire: Wire) -> tuple[Report, ...]:
    """What all sites but site1 and site3 report: the same, apart from their own replies."""
    reports = []
    for number, site in enumerate(MANY, 1):
        if site not in ("site1", "site3"):
            said = replace(SAID, known_replies={A: 1, Origin(site, "1"): 1}, number=number)
            reports.append(wire.with_report(site, said).report_of(site))
    return tuple(reports)


def test_reports_that_say_the_same_are_each_checked() -> None:
    node = World(1, MANY, PROFILES["calm"]).nodes["site3"]
    wire = Wire(MANY, lambda _site: 1_000_000, lambda _here, _site: None)
    good = many_reports(wire)
    forged = replace(good[1], known_replies={A: 1, good[1].origin: 2})
    stolen = replace(good[2], signature=good[3].signature)
    sent = (good[0], forged, stolen, *good[3:])
    found = taken(wire, node, Message("n", "1", known={A: 1}, reports=sent, ages=(1, 2, 3, 4, 5, 6)))
    assert found.reports == (good[0], *good[3:])
    assert found.ages == (1, 4, 5, 6)
    assert sum(wire.refused.reasons.values()) == 2


# -- replies without their outputs -----------------------------------------------------------------------

OUTPUT = "a line that is longer than a hash\n"


def replied(wire: Wire, **changes: Any) -> Reply:
    """What site2 replies to an operation of site1."""
    hash_ = hash_of_output(OUTPUT)
    said = Reply("n", Origin("site2", "1"), 1, OpId(A, 1), "inc", Status.OK, output=OUTPUT, output_hash=hash_)
    return replace(wire.signed(said, "site2"), **changes)


def replies_taken(wire: Wire, node: Node, reply: Reply, sender: str = "site1", to: str = "site3") -> list[Reply]:
    body = wire.pack(sender, Message("n", "1", replies=(reply,), replies_after={reply.origin: 0}), to=to)
    (found,) = wire.unpack(node, sender, body)
    return list(found.replies)


def test_a_reply_that_is_passed_on_without_its_output_keeps_its_signature() -> None:
    wire, node = make_wire()
    (found,) = replies_taken(wire, node, replied(wire))
    assert (found.output, found.is_cut) == ("", True)
    (found,) = replies_taken(wire, node, replied(wire), sender="site2", to="")
    assert found.output == OUTPUT


@pytest.mark.parametrize(
    "changes",
    [
        {"output": "what site2 has never printed, in a longer line"},
        {"output": "", "output_hash": "0" * 24},
        {"output_hash": ""},
        {"output": "", "output_hash": ""},
        {"output": OUTPUT * 2, "output_hash": hash_of_output(OUTPUT * 2)},
    ],
    ids=["another output", "another hash", "no hash", "no output at all", "another output with its hash"],
)
def test_a_site_cannot_change_the_output_of_another_one(changes: dict[str, str]) -> None:
    wire, node = make_wire()
    assert replies_taken(wire, node, replied(wire, **changes), to="") == []
    assert sum(wire.refused.reasons.values()) == 1


def test_replies_in_rows_are_each_checked() -> None:
    node = World(1, MANY, PROFILES["calm"]).nodes["site3"]
    wire = Wire(MANY, lambda _site: 1_000_000, lambda _here, _site: None)

    def said(site: str) -> Reply:
        return Reply("n", Origin(site, "1"), 1, OpId(A, 1), "inc", Status.OK)

    good = [wire.signed(said(site), site) for site in ("site2", "site4", "site5", "site6")]
    forged = replace(good[1], n=2), replace(good[2], signature=good[3].signature), wire.signed(said("site7"), "site1")
    message = Message("n", "1", replies=(*good, *forged), replies_after={one.origin: 0 for one in good})
    (found,) = wire.unpack(node, "site1", wire.pack("site1", message, to="site3"))
    assert sorted(one.origin.site for one in found.replies) == ["site2", "site4", "site5", "site6"]
    assert {origin.site for origin in found.replies_after} == {"site2", "site6"}, "the others have a hole"
    assert sum(wire.refused.reasons.values()) == 3


def test_a_reply_that_was_signed_before_outputs_had_hashes_is_taken_as_a_whole() -> None:
    wire, node = make_wire()
    old = wire.signed(replace(replied(wire), output_hash="", signature=""), "site2")
    (found,) = replies_taken(wire, node, old)
    assert (found.output, found.is_cut) == (OUTPUT, False)


# -- what checking costs -----------------------------------------------------------------------------------------------


def turns_during(check: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
    """How often other tasks of the event loop get a turn while something is checked, and the result."""

    async def run() -> tuple[int, Any]:
        task, turns = asyncio.create_task(check), 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        return turns, task.result()

    return asyncio.run(run())


def checked_signatures(wire: Wire, node: Node) -> int:
    return wire._verifier(node)._verifier.checked


def test_forged_reports_do_not_stop_the_agent_while_they_are_checked() -> None:
    """Each costs its sender a hundred bytes, and the receiver a hundred microseconds."""
    wire, node = make_wire()
    message = passed_on(wire, lambda one: replace(one, digest="e"))
    forged = replace(message, reports=message.reports * 400, ages=())
    turns, (found,) = turns_during(wire._verifier(node).verify("site1", [forged]))
    assert found.reports == ()
    assert turns > 4
    assert checked_signatures(wire, node) == 200, "a site that sends more wrong ones gets none of the others checked"


def test_true_reports_do_not_stop_the_agent_while_they_are_checked() -> None:
    wire, node = make_wire()
    reports = [wire.with_report("site2", replace(SAID, number=n)).report_of("site2") for n in range(300)]
    message = replace(passed_on(wire), reports=tuple(reports), ages=())
    turns, (found,) = turns_during(wire._verifier(node).verify("site1", [message]))
    assert len(found.reports) == 300
    assert turns > 6


def test_documents_that_are_refused_before_their_signature_do_not_stop_the_agent() -> None:
    wire, node = make_wire()
    replies = tuple(Reply("n", Origin("site2", "1"), n, OpId(A, 1), "inc", Status.OK) for n in range(1, 3_001))
    turns, (found,) = turns_during(wire._verifier(node).verify("site1", [Message("n", "1", replies=replies)]))
    assert found.replies == ()
    assert turns > 6


def test_many_messages_do_not_stop_the_agent_while_the_engine_takes_them() -> None:
    wire, _ = make_wire()
    posted: list[Event] = []
    engine = cast("Engine", SimpleNamespace(post=posted.append))
    intake = DocumentIntake(engine, None, lambda: None, wire.refused, lambda _type, _resource: None)
    messages = [Message("n", "1", number=number) for number in range(1_000)]
    turns, _ = turns_during(intake.take("site1", messages))
    assert [one.message for one in posted if isinstance(one, Received)] == messages
    assert turns > 40
