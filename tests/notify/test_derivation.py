"""What documents, fates and notices become."""

from typing import Any

import pytest

from cheops.config.notify import EventKind
from cheops.engine.events import Notify, PeerDown
from cheops.log.operation import Applied, Kind, OpId, Status, Verdict
from cheops.log.rules import Fate, Rule
from cheops.notify.derivation import About, of_fate, of_notice, of_operation, of_peer, of_reply
from cheops.notify.event import MAX_TEXT_CHARACTERS, decoded, encoded
from tests.notify.documents import HERE, THERE, operation, reply

OP = OpId(HERE, 1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("decided", "OK")),
        ({"verdict": Verdict.VOID}, ("void", "VOID")),
        ({"verdict": Verdict.SUPERSEDED}, ("superseded", "SUPERSEDED")),
        ({"kind": Kind.SITES, "sites": ("a", "b")}, ("sites", "OK")),
        ({"kind": Kind.DELETE}, ("decided", "OK")),
        ({"kind": Kind.SEAL}, None),
        ({"verdict": None}, ("accepted", "PENDING")),
        ({"kind": Kind.SEAL, "verdict": None}, None),
    ],
)
def test_operations(fields: dict[str, Any], expected: tuple[str, str] | None) -> None:
    event = of_operation(operation(**fields), 5)
    assert (event and (event.kind, event.status)) == expected


@pytest.mark.parametrize(
    ("fields", "was_unknown", "expected"),
    [
        ({}, False, "ran"),
        ({"status": Status.KO}, False, "diverged"),
        ({"status": Status.KO, "origin": HERE}, False, "ran"),
        ({"status": Status.UNKNOWN}, False, "unknown"),
        ({"status": Status.UNKNOWN}, True, "unknown"),
        ({"status": Status.OK}, True, "resolved"),
        ({"status": Status.PENDING}, True, "resolved"),
        ({"status": Status.PENDING}, False, None),
        ({"status": Status.SUPERSEDED}, False, None),
        ({"op": None, "replay": True}, False, "replayed"),
        ({"key": "!sites"}, False, None),
    ],
)
def test_replies(fields: dict[str, Any], was_unknown: bool, expected: str | None) -> None:
    given = {"op": OP, **fields}
    event = of_reply(reply(1, **given), About("tally", "inc"), 5, was_unknown=was_unknown)
    assert (event and event.kind) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule.LATER_REPLACES_EARLIER, EventKind.SUPERSEDED),
        (Rule.LAST_WRITER, EventKind.SUPERSEDED),
        (Rule.ORPHANED, EventKind.ORPHANED),
        (Rule.VOID, None),
        (Rule.BEATEN_AT_ORIGIN, None),
        (Rule.FOLDED, None),
    ],
)
def test_fates(rule: Rule, expected: EventKind | None) -> None:
    event = of_fate(operation(), Fate(rule, OpId(THERE, 7)), 5)
    assert (event and event.kind) == expected
    if event:
        assert event.detail == f"by site2:7: {rule.sentence}"
        assert event.site == "site1", "it is the affair of the site that made it"


def test_the_same_notice_of_the_same_state_is_the_same_event() -> None:
    notice = Notify("n", "order-not-enforced")
    one, two = (of_notice(notice, "site1", "tally", {HERE: 3}, at_ms) for at_ms in (5, 6))
    other = of_notice(notice, "site1", "tally", {HERE: 4}, 5)
    assert one
    assert two
    assert other
    assert one.id == two.id != other.id
    assert of_notice(Notify("n", "unknown", OP), "site1", "", {}, 5) is None, "a reply says that, durably"


def test_an_event_is_bounded_and_survives_json() -> None:
    long = reply(1, OP, Status.KO, detail="ü" * 10_000, output="x" * 1_000_000)
    event = of_reply(long, About("tally", "inc"), 1_794_793_291_885)
    assert event
    assert len(event.output) < MAX_TEXT_CHARACTERS + 100
    assert event.detail.endswith("[cheops: 6000 more characters]")
    assert event.time == "2026-11-16T01:41:31.885Z"
    assert decoded(encoded(event)) == event


def test_ids_are_ascii_whatever_a_name_holds() -> None:
    odd = of_operation(operation(resource="naïve name/with: \u2028"), 5)
    peer = of_peer(PeerDown("DC 1/é"), "a b", 5)
    assert odd
    for id_ in (odd.id, peer.id):
        assert id_.isascii()
        assert " " not in id_


def test_a_replay_says_nothing_of_an_operation() -> None:
    event = of_reply(reply(3, None, replay=True, applied=(Applied(OP, "inc"),), key=""), About("tally"), 5)
    assert event
    assert (event.operation, event.type, event.resource_type) == ("", "", "tally")
