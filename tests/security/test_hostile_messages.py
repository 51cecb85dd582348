"""Messages that are well formed and meant badly: the engine neither stumbles over them nor works for ever.

What fuzzing found, or came near, is kept here as it was. `tried` ends what takes seconds of the processor.
"""

import json
import zlib

import msgspec
import pytest
from msgspec.structs import replace

from cheops.engine.documents import Message, Snapshot
from cheops.engine.events import Effect, Loaded, PeerUp, Received, Send, Tick
from cheops.engine.settings import ResourceType, Settings
from cheops.engine.site import Site
from cheops.log.operation import Kind, MatrixRef, Operation, Origin, Seal, Stamp
from cheops.peers.links import EnvelopeError, pack, unpack
from cheops.scope import ScopeError, parse
from tests.security.fuzz import samples
from tests.security.fuzz.campaign import tried
from tests.security.fuzz.targets import Target

HERE, PARIS = Origin("here", "1"), samples.PARIS
NOW_MS = 1_700_000_001_000


def heard(*messages: Message) -> tuple[Site, list[Effect]]:
    """A site that was sent these, and looks after itself for a while."""
    site = Site(HERE, Settings({"t": ResourceType("t")}))
    effects: list[Effect] = []
    for message in messages:
        effects += site.step(Received("paris", message), NOW_MS)
        effects += site.step(Loaded(message.resource, ()), NOW_MS)
    effects += site.step(PeerUp("paris", "3f2a"), NOW_MS + 1)
    effects += site.step(Tick(), NOW_MS + 60_000)
    return site, effects


def quickly(*messages: Message) -> None:
    error = tried(Target(lambda _: heard(*messages), (b"",), ()), b"")
    assert error is None, repr(error)


def test_a_snapshot_whose_matrix_nobody_has_is_asked_for_and_not_taken() -> None:
    lost = MatrixRef("0" * 32, Stamp(1_700_000_000_000, 0, PARIS))
    snapshot = Snapshot({PARIS: 1}, {}, None, lost, (), root=lost.introduced)
    sealing = samples.operation(1, seal=Seal({}, lost.introduced, (PARIS,)))
    site, effects = heard(Message("counter", "3f2a", (sealing,), known={PARIS: 1}, snapshot=snapshot))
    assert "counter" not in site.replicas, "nothing is known of it, so it has left memory"
    wanted = [effect.message.wanted for effect in effects if isinstance(effect, Send)]
    assert any(lost.hash in hashes for hashes in wanted)


def test_replies_up_to_the_end_of_all_numbers_are_not_counted_one_by_one() -> None:
    made = samples.MESSAGES[3]
    assert made.snapshot
    far = replace(made.snapshot, reply_floor={PARIS: 2**53 - 1, Origin("lyon", "91c0"): 2**53 - 1})
    quickly(replace(made, snapshot=far))


@pytest.mark.parametrize("count", [5_000])
def test_stamps_that_go_backwards_do_not_take_the_square_of_their_number(count: int) -> None:
    def made(n: int) -> Operation:
        return samples.operation(
            n,
            Kind.NORMAL,
            stamp=Stamp(1_700_000_000_000 + count - n, 0, PARIS),
            type="inc",
            sites=("here", "paris") if n == 1 else None,
        )

    ops = tuple(made(n) for n in range(1, count + 1))
    quickly(Message("counter", "3f2a", ops, matrices=(samples.RULES,)))


def test_thousands_of_open_braces_are_refused_at_once() -> None:
    error = tried(Target(lambda data: parse(data.decode()), (b"",), (ScopeError,)), b"{\r\n" * 20_000)
    assert error is None, repr(error)


@pytest.mark.parametrize("body", [b"\x93\xa5par\xffs\x90\x90", b"\x93" * 50_000, zlib.compress(b"\x93")[:-1], b"x"])
def test_bytes_that_are_no_text_are_no_envelope(body: bytes) -> None:
    with pytest.raises(EnvelopeError):
        unpack(body)


def test_one_document_that_cannot_be_read_does_not_cost_the_others() -> None:
    before = unpack(samples.ENVELOPES[0])
    site, documents, parts = msgspec.msgpack.decode(samples.ENVELOPES[0])
    place = parts[0][1][0]
    broken = {**json.loads(documents[place]), "seq": -1}
    documents[place] = json.dumps(broken).encode()
    after = unpack(msgspec.msgpack.encode([site, documents, parts]))
    assert [one.id for one in after.refused] == [f"op/{broken['resource']}/{broken['origin']}/-1"]
    assert len(after.messages) == len(before.messages)
    for less, whole in zip(after.messages, before.messages, strict=True):
        assert len(less.ops) == len(whole.ops) - 1
        assert (less.replies, less.matrices) == (whole.replies, whole.matrices)


def test_a_message_whose_document_is_missing_acknowledges_nothing_by_it() -> None:
    """Of the origin whose reply it is; the replies of others count."""
    whole = samples.MESSAGES[0]
    origin, nice = whole.replies[0].origin, Origin("nice", "1")
    body = pack("paris", [replace(whole, replies_after={origin: 0, nice: 0})])
    assert set(unpack(body).messages[0].replies_after) == {origin, nice}
    site, documents, parts = msgspec.msgpack.decode(body)
    [places] = [places for named, places in parts[0][2] if named == origin]
    documents[places[0]] = b"{}"
    (found, *_) = unpack(msgspec.msgpack.encode([site, documents, parts])).messages
    assert set(found.replies_after) == {"nice/1"}
    places[0] = len(documents)
    (found, *_) = unpack(msgspec.msgpack.encode([site, documents, parts])).messages
    assert set(found.replies_after) == {"nice/1"}, "a document that is not there at all"


def test_a_snapshot_that_misses_a_document_is_none() -> None:
    site, documents, parts = msgspec.msgpack.decode(pack("paris", [samples.MESSAGES[3]]))
    documents[parts[0][1][0]] = b"{}"
    (message,) = unpack(msgspec.msgpack.encode([site, documents, parts])).messages
    assert message.snapshot is None


def test_two_contents_under_one_id_both_arrive() -> None:
    one, other = samples.operation(2), samples.operation(2, why="another")
    (message, again) = unpack(
        pack("paris", [Message("counter", "1", (one, other)), Message("counter", "1", (one,))])
    ).messages
    assert [op.why for op in message.ops] == ["", "another"]
    assert [op.why for op in again.ops] == [""]
