"""Messages in few bytes: the receiver has the very same, and whoever writes them cannot make it take too much."""

import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cheops.engine.documents import Document, Message, Report
from cheops.log.operation import Applied, OpId, Origin, Reply, Status, Timing, hash_of_output
from cheops.peers import envelope
from cheops.peers.envelope import EnvelopeError, compressed, pack, unpack
from cheops.peers.origin_tables import OriginTables
from cheops.store import codec

ORIGINS = tuple(Origin(f"site{number}", f"{number:012x}") for number in range(1, 21))
OP = OpId(ORIGINS[0], 7)
OUTPUT = "a line that is longer than a hash\n"


def report(number: int, **changes: Any) -> Report:
    """Of a site that has all replies of before, and its own new one."""
    own = ORIGINS[number]
    replies = dict.fromkeys(ORIGINS, 6) | {own: 7}
    found = Report(own, 1_000 + number, {OP.origin: 7}, replies, {OP.origin: 7}, "digest", signature=f"sign{number:04}")
    return replace(found, **changes)


def reply(number: int, **changes: Any) -> Reply:
    timing = Timing(1_700_000_000_000 + number, number)
    found = Reply("n", ORIGINS[number], 7, OP, "inc", Status.OK, timing=timing, signature=f"sign{number:04}")
    return replace(found, **changes)


def passed_on(
    reports: tuple[Report, ...] | None = None, replies: tuple[Reply, ...] | None = None, **changes: Any
) -> Message:
    known = dict.fromkeys(ORIGINS, 7)
    message = Message("n", ORIGINS[0].incarnation, known={OP.origin: 7}, known_replies=known, settled={OP.origin: 7})
    reports = tuple(report(number) for number in range(2, 20)) if reports is None else reports
    replies = tuple(reply(number) for number in range(2, 20)) if replies is None else replies
    return replace(message, reports=reports, ages=tuple(range(len(reports))), replies=replies, **changes)


def again(message: Message) -> Message:
    (found,) = unpack(pack("site1", [message])).messages
    return found


def in_order(message: Message) -> Message:
    """Those in groups come in another order."""
    aged = sorted(zip(message.reports, message.ages, strict=True), key=lambda one: (one[0].origin, one[0].number))
    replies = sorted(message.replies, key=lambda one: (one.origin, one.n))
    return replace(
        message, reports=tuple(one for one, _ in aged), ages=tuple(age for _, age in aged), replies=tuple(replies)
    )


def same(found: Message, sent: Message) -> bool:
    """Signatures included, which are no part of the equality of replies."""
    found, sent = in_order(found), in_order(sent)
    signatures = [[one.signature for one in message.replies] for message in (found, sent)]
    return found == sent and signatures[0] == signatures[1]


@pytest.mark.parametrize(
    "message",
    [
        passed_on(),
        passed_on(reports=(), replies=()),
        passed_on(replies_after={ORIGINS[3]: 0, ORIGINS[5]: 6}),
        passed_on(reports=(report(2, known_replies={}), report(3, known_replies={ORIGINS[19]: 0}), report(4))),
        passed_on(reports=(report(2, digest="other"), report(3, busy=True), report(4, closed=True), report(5))),
        passed_on(reports=(report(2, signature=""), report(3))),
        passed_on(replies=(reply(2, status=Status.KO, detail="no"), reply(3), reply(4), reply(4, n=8, op=None))),
        passed_on(replies=(reply(2, signature=""), reply(3), reply(4, timing=Timing()))),
        passed_on(replies=tuple(reply(n, output_hash=hash_of_output(f"{OUTPUT}{n}")) for n in range(9))),
        passed_on(replies=tuple(reply(n, op=None, replay=True, applied=(Applied(OP, "inc"),)) for n in range(9))),
    ],
    ids=range(10),
)
def test_the_receiver_has_what_was_sent(message: Message) -> None:
    assert same(again(message), message)


def test_any_reports_come_back_as_they_were_signed() -> None:
    draw = Random(7)  # noqa: S311 - repeatable is the point

    def vector() -> dict[Origin, int]:
        return {origin: draw.choice((0, 1, 6, 2**40)) for origin in ORIGINS if draw.random() < 0.7}

    for _ in range(200):
        reports = tuple(
            report(n, known=draw.choice(({}, {OP.origin: 7}, vector())), known_replies=vector(), settled=vector())
            for n in range(draw.randint(0, 9))
        )
        message = passed_on(reports=reports, replies=(), known=vector(), settled=vector(), replies_after=vector())
        assert same(again(message), message)


def test_passing_on_takes_few_bytes_per_site() -> None:
    """Signatures apart: nobody can shorten them."""
    tables, theirs = OriginTables(), OriginTables()
    message = passed_on(
        tuple(report(n, signature="") for n in range(2, 20)), tuple(reply(n, signature="") for n in range(2, 20))
    )
    unpack(pack("site1", [message], "site2", tables), lambda _: theirs)
    unpack(pack("site2", [message], "site1", theirs), lambda _: tables)
    body = compressed(pack("site1", [message], "site2", tables))
    assert len(body) < 200 + 12 * 18


# -- lists of origins ------------------------------------------------------------------------------------


def test_a_list_that_the_peer_has_used_is_not_written_again() -> None:
    ours, theirs = OriginTables(), OriginTables()
    message = passed_on(reports=(), replies=())
    first = pack("site1", [message], "site2", ours)
    assert ORIGINS[9].encode() in first
    assert ORIGINS[9].encode() in pack("site1", [message], "site2", ours), "it may not have come"
    unpack(first, lambda _: theirs)
    back = pack("site2", [message], "site1", theirs)
    assert ORIGINS[9].encode() not in back
    assert unpack(back, lambda _: ours).messages == [message]
    later = pack("site1", [message], "site2", ours)
    assert ORIGINS[9].encode() not in later
    assert unpack(later, lambda _: theirs).messages == [message]


def test_an_unknown_list_costs_one_message_and_is_written_again() -> None:
    ours, theirs = OriginTables(), OriginTables()
    message = passed_on(reports=(), replies=())
    unpack(pack("site2", [message], "site1", theirs), lambda _: ours)
    restarted = OriginTables()
    found = unpack(pack("site1", [message, Message("m", "1")], "site2", ours), lambda _: restarted)
    assert found.is_unknown
    assert [one.resource for one in found.messages] == ["m"]
    unpack(pack("site2", []), lambda _: ours)
    assert unpack(pack("site1", [message], "site2", ours), lambda _: restarted).messages == [message]


def test_lists_are_bounded() -> None:
    tables = OriginTables()
    for number in range(1_000):
        tables.read([f"site{place:03}/{number:06}" for place in range(50)])
    huge = [f"{'x' * 900}{place:03}/1" for place in range(50)]
    tables.read(huge)
    assert len(tables._lists) <= 64
    assert isinstance(tables.form_of(tuple(Origin(*one.split("/")) for one in huge)), list)


# -- what a hostile site may write -----------------------------------------------------------------------


def changed(message: Message, change: Callable[[Any], None], *others: Message) -> Any:
    """The envelope of some messages with a change in the part of the first."""
    tree = msgspec.msgpack.decode(pack("site1", [message, *others]))
    change(tree[2][0])
    return unpack(msgspec.msgpack.encode(tree))


SHORT, ROWS = 4, 5  # in a part
GROUPS = 5  # in the short form


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part[SHORT][0].reverse(),
        lambda part: part[SHORT][0].append(part[SHORT][0][-1]),
        lambda part: part[SHORT][0].pop(),
        lambda part: part[SHORT][0].__setitem__(0, "no origin"),
        lambda part: part[SHORT].__setitem__(1, [2**41]),
        lambda part: part[SHORT].__setitem__(1, [-1]),
        lambda part: part[SHORT].__setitem__(1, [1] * 30),
        lambda part: part[SHORT][GROUPS][0][8].append(1),
        lambda part: part[SHORT][GROUPS][0][8].__setitem__(0, 99),
        lambda part: part[SHORT][GROUPS][0][11].__setitem__(0, [[99, 1]]),
        lambda part: part[SHORT][GROUPS][0].__setitem__(7, 2**53 - 1),
        lambda part: part[ROWS][0][1].append(1),
        lambda part: part[ROWS][0][1].__setitem__(0, 99),
        lambda part: part[ROWS][0][2].__setitem__(0, 0),
        lambda part: part[ROWS][0][3].__setitem__(0, -(2**60)),
        lambda part: part[ROWS][0][5].__setitem__(0, b"short"),
        lambda part: part[ROWS][0][6].__setitem__(0, '"'),
    ],
    ids=range(17),
)
def test_what_nobody_writes_is_refused_and_costs_no_other_message(change: Callable[[Any], None]) -> None:
    other = passed_on(digest="other")
    found = changed(passed_on(), change, other)
    assert [one.digest for one in found.messages] == ["other"]
    assert len(found.refused) == 1


def test_a_message_says_nothing_twice() -> None:
    def add(part: Any) -> None:
        part[0]["known"] = {str(OP.origin): 9}

    found = changed(passed_on(), add)
    assert (found.messages, found.refused[0].reason) == ([], "a message says something twice")


def test_few_bytes_cannot_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (passed_on().known, passed_on().known_replies, passed_on().replies_after, passed_on().settled)
    monkeypatch.setattr(envelope, "MOST_ENTRIES", 18 * (20 + 1) + sum(map(len, said)))
    body = pack("site1", [passed_on()])
    assert len(unpack(body).messages) == 1
    body = pack("site1", [passed_on(), passed_on()])
    assert (len(unpack(body).messages), len(unpack(body).refused)) == (1, 1)


def number_of_entries(messages: list[Message]) -> int:
    vectors = [[one.known, one.known_replies, one.replies_after, one.settled] for one in messages]
    return sum(len(vector) for some in vectors for vector in some)


def test_many_messages_of_few_bytes_hold_few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of one byte, or less once it is compressed, becomes one of a dictionary in each message."""
    known = dict.fromkeys(ORIGINS, 1)
    monkeypatch.setattr(envelope, "MOST_ENTRIES", 5 * len(known))
    message = Message("n", "000000000001", known=known, settled=known)
    bare = msgspec.msgpack.encode([msgspec.Raw(codec.pack_message(message))])
    for body in (pack("site1", [message] * 100), bomb(parts=list_of(bare, 100))):
        found = unpack(body)
        assert 0 < number_of_entries(found.messages) <= 5 * len(known)
        assert {one.reason for one in found.refused} == {f"an envelope with more than {5 * len(known)} numbers"}


def test_lists_in_a_part_are_not_read_if_they_are_large() -> None:
    """Of a byte, zlib makes a thousand, and a list eight times that."""
    places = b"\x92\xa1a" + list_of(b"\x00", envelope.MOST_DOCUMENTS)
    replies = b"\x95" + packed_bare() + b"\x90" + list_of(places, 200) + b"\x90\xc0"
    columns = b"\x97\x00" + list_of(b"\x00", 9_000_000) + b"\x90" * 5
    rows = b"\x96" + packed_bare() + b"\x90\x90\x90\xc0" + list_of(columns, 1)
    for part in (replies, rows):
        body = bomb(parts=b"\x91" + part)
        assert len(body) < 100_000
        tracemalloc.start()
        found = unpack(body)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (found.messages, len(found.refused)) == ([], 1)
        assert most < 50_000_000


def test_reports_without_a_short_form_are_few() -> None:
    vector = {Origin(f"{number:x}", "a"): 1 for number in range(1_000)}
    report = Report(ORIGINS[1], 1, vector, vector, vector)
    message = Message("n", "000000000001", reports=(report,) * 1_000)
    part = msgspec.msgpack.encode([msgspec.Raw(codec.pack_message(message))])
    found = unpack(bomb(parts=b"\x91" + part))
    assert (found.messages, len(found.refused)) == ([], 1)


def packed_bare() -> bytes:
    return codec.pack_message(Message("n", "000000000001"))


def bomb(documents: bytes = b"\x90", parts: bytes = b"\x90") -> bytes:
    """An envelope of a few kilobytes that expands to many objects."""
    return compressed(b"\x93\xa5site1" + documents + parts)


def list_of(item: bytes, count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + item * count


@pytest.mark.parametrize(
    "body",
    [
        bomb(documents=list_of(b"\xc4\x00", envelope.MOST_DOCUMENTS + 1)),
        bomb(parts=list_of(b"\x91\xc0", envelope.MOST_MESSAGES + 1)),
    ],
    ids=["documents", "messages"],
)
def test_more_documents_and_messages_than_anybody_sends_are_not_even_read(body: bytes) -> None:
    assert len(body) < 2_000
    with pytest.raises(EnvelopeError, match="of length <="):
        unpack(body)


def test_one_document_is_not_named_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte that names a document costs the receiver all checks of it."""
    monkeypatch.setattr(envelope, "MOST_DOCUMENTS", 100)
    message = passed_on(replies=(reply(2), reply(3, detail="different")))

    def repeat(part: Any) -> None:
        part[2] = [[str(ORIGINS[2]), [0] * 60], [str(ORIGINS[3]), [1] * 60]]

    def repeat_rows(part: Any) -> None:
        part[ROWS].append([0, [1] * 100, [7] * 100, [0] * 100, [0] * 100, [b""] * 100, []])

    for change in (repeat, repeat_rows):
        found = changed(message, change, passed_on(replies=(reply(4),)))
        assert [len(one.replies) for one in found.messages] == [1]
        assert [one.reason for one in found.refused] == ["an envelope with more than 100 documents"]


def test_documents_that_cannot_be_read_are_not_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    decode = codec.decode

    def noted(raw: bytes) -> Document:
        decoded.append(raw)
        return decode(raw)

    monkeypatch.setattr(codec, "decode", noted)
    found = unpack(bomb(documents=list_of(b"\xc4\x00", 10_000)))
    assert len(decoded) == 200
    assert "too many" in found.refused[-1].reason


def test_a_small_body_that_expands_is_a_large_one() -> None:
    """Large ones are read in a thread: heartbeats do not wait for them."""
    body = bomb(documents=list_of(b"\xc4\x00", 10_000))
    assert len(body) < 1_000
    assert envelope.is_larger(body, 20_000)
    assert not envelope.is_larger(body, 21_000)
    assert envelope.is_larger(b"\x93" * 20, 19)
    assert not envelope.is_larger(b"\x93" * 20, 20)


def test_large_replies_have_no_rows() -> None:
    large = passed_on(replies=tuple(reply(number, detail="x" * 2_000) for number in range(2, 6)))
    assert same(again(large), large)

    def forge(part: Any) -> None:
        part[ROWS].append([0, [1] * 9, list(range(1, 10)), [0] * 9, [0] * 9, [b""] * 9, []])

    assert changed(large, forge).messages == []


def test_rows_below_a_reply_that_cannot_be_read_leave_holes() -> None:
    """Their origins must not be acknowledged beyond what came."""
    message = passed_on(replies_after={ORIGINS[2]: 6, ORIGINS[3]: 6, ORIGINS[4]: 6})
    tree = msgspec.msgpack.decode(pack("site1", [message]))
    tree[1][0] = b"{}"
    (found,) = unpack(msgspec.msgpack.encode(tree)).messages
    assert (found.replies, found.replies_after) == ((), {})


# -- outputs ---------------------------------------------------------------------------------------------


def test_outputs_go_to_the_site_that_made_the_operation() -> None:
    with_output = tuple(reply(n, output=OUTPUT, output_hash=hash_of_output(OUTPUT)) for n in range(2, 6))
    message = passed_on(replies=with_output)

    def outputs(body: bytes) -> list[str]:
        return [one.output for one in unpack(body).messages[0].replies]

    assert outputs(pack("site3", [message], OP.origin.site)) == [OUTPUT] * 4
    assert outputs(pack("site1", [message], "site9")) == [""] * 4
    assert unpack(pack("site1", [message], "site9")).messages[0].replies[0].is_cut
    for_hub = replace(message, for_others=True)
    assert outputs(pack("site3", [for_hub], "site9")).count(OUTPUT) == 1, "its own: the receiver passes it on"


def test_short_outputs_and_shared_ones_go_to_everybody() -> None:
    replies = (reply(2, output="short", output_hash=hash_of_output("short")), reply(3, output=OUTPUT))
    (found,) = unpack(pack("site1", [passed_on(replies=replies)], "site9")).messages
    assert [one.output for one in found.replies] == ["short", OUTPUT]
