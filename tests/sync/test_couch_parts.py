"""The small parts of the protocol: comparing logs, waiting, delays, addresses."""

import asyncio
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec.structs import replace

from cheops.errors import ClientError
from cheops.log.operation import OpId, Origin, Reply, Status, hash_of_output
from cheops.peers.couchdb.client import CouchClient, RemoteError, ReplicatorSettings, database_url
from cheops.peers.couchdb.database import FeedSignal
from cheops.peers.couchdb.documents import couch_document, parse_document
from cheops.peers.couchdb.replicator import START, Checkpoints, ReplicationStats, Replicator, common_sequence, in_pieces
from tests.sync.couch_faults import answering
from tests.sync.couch_lab import Site, operation, serving, until


def log(*sessions: tuple[str, Any, Any]) -> dict[str, Any]:
    """Sessions, the newest first: name, where it began, where it was."""
    entries = [
        {"session_id": name, "start_last_seq": start, "recorded_seq": place, "end_last_seq": place}
        for name, start, place in sessions
    ]
    return {"session_id": sessions[0][0], "source_last_seq": sessions[0][2], "history": entries}


@pytest.mark.parametrize(
    ("source", "target", "place"),
    [
        (None, None, START),
        (log(("a", 0, 5)), None, START),
        (None, log(("a", 0, 5)), START),
        (log(("a", 0, "5-x")), log(("a", 0, "5-x")), "5-x"),
        # The crash came between the two: the session counts up to where it began.
        (log(("b", "5-x", "7-x"), ("a", 0, "5-x")), log(("b", "5-x", "9-x"), ("a", 0, "5-x")), "5-x"),
        # Only one end has the newest session.
        (log(("a", 0, 5)), log(("b", 5, 9), ("a", 0, 5)), 5),
        (log(("c", 9, 12), ("b", 5, 9), ("a", 0, 5)), log(("b", 5, 9)), 9),
        # One end was set back to an older copy, and both went on.
        (log(("c", 4, 8), ("b", 4, 6), ("a", 0, 4)), log(("d", 4, 9), ("a", 0, 4)), 4),
        (log(("a", 0, 5)), log(("b", 0, 5)), START),
        (log(("a", 0, 5)), log(("a", 1, 6)), START),
        # What is not a log is none.
        (log(("a", 0, 5)), {"history": "long"}, START),
        (log(("a", 0, 5)), {"history": [{"session_id": 7}]}, START),
        (log(("a", 0, 5)), {"last_seq": 0}, START),
    ],
)
def test_where_two_logs_agree(source: Any, target: Any, place: Any) -> None:
    assert common_sequence(source, target) == place


class Notebook:
    """An end of a replication that keeps only notes."""

    def __init__(self) -> None:
        self.notes: dict[str, dict[str, Any]] = {}
        self.writes = 0

    async def note(self, id_: str) -> dict[str, Any] | None:
        return self.notes.get(id_)

    async def put_note(self, id_: str, content: dict[str, Any]) -> str:
        self.notes[id_] = content
        self.writes += 1
        return f"0-{self.writes}"


def test_a_place_is_noted_at_both_ends_once_and_found_again() -> None:
    settings = ReplicatorSettings(checkpoint_s=1_000, checkpoint_changes=10)

    async def run() -> None:
        source, target = Notebook(), Notebook()
        place: Any = START
        for session in range(30):
            checkpoints = Checkpoints("id", f"s{session}", source, target, settings)
            assert await checkpoints.start() == place
            await checkpoints.write(ReplicationStats())  # nothing to note yet
            assert not checkpoints.advance(f"{session}-a", 9)
            assert checkpoints.advance(f"{session}-b", 1)  # after so many changes it is time
            for _ in range(2):
                await checkpoints.write(ReplicationStats(read=10))
            place = f"{session}-b"
            assert (source.writes, target.writes) == (session + 1, session + 1)
        assert source.notes == target.notes
        assert [entry["session_id"] for entry in source.notes["id"]["history"][:2]] == ["s29", "s28"]
        assert len(source.notes["id"]["history"]) == 20

    asyncio.run(run())


def test_documents_are_sent_in_pieces() -> None:
    sizes = [10, 10, 5_000, 10, 10, 10, 10]
    documents = [couch_document(operation(n, "c", line="x" * size, sites=None)) for n, size in enumerate(sizes, 2)]
    three = 3 * len(documents[0].raw)

    def lengths(most_bytes: int) -> list[int]:
        return [len(piece) for piece in in_pieces(documents, most_bytes)]

    assert in_pieces([], 100) == []
    assert lengths(three) == [2, 1, 3, 1]
    assert lengths(1) == [1] * 7
    assert lengths(10**6) == [7]
    assert [one for piece in in_pieces(documents, three) for one in piece] == documents


def test_waiting_for_a_feed() -> None:
    async def run() -> None:
        signal = FeedSignal()
        signal.advance(5)
        assert await signal.wait_beyond(4, None)
        assert not await signal.wait_beyond(5, 0)
        waits = [asyncio.create_task(signal.wait_beyond(seq, None)) for seq in (5, 6)]
        await until(lambda: len(signal._waiting) == 2)
        signal.advance(5)  # says nothing new, and wakes nobody
        signal.advance(6)
        assert await waits[0]
        assert not waits[1].done()
        signal.close()
        assert not await waits[1]
        assert not await signal.wait_beyond(0, None)

    asyncio.run(run())


@pytest.mark.parametrize(
    "bad", ["", "cheops", "ftp://host/db", "http://host", "http://host/", "http://h/a?b=c", "http://["]
)
def test_addresses_that_are_none(bad: str) -> None:
    with pytest.raises(ClientError, match="https://user:password@host:5984/name"):
        database_url(bad)


def test_credentials_are_sent_and_never_shown() -> None:
    seen: list[str] = []

    def wrap(app: Any) -> Any:
        async def wrapped(scope: Any, receive: Any, send: Any) -> None:
            seen.append(dict(scope["headers"])[b"authorization"].decode())
            await app(scope, receive, send)

        return wrapped

    async def run() -> None:
        site = Site()
        async with serving(site, wrap), aiohttp.ClientSession() as session:
            url = site.at("nothing").replace("//", "//eve:s3cret@")
            remote = CouchClient(url, session, ReplicatorSettings())
            with pytest.raises(RemoteError) as caught:
                await remote.revs_diff({})
        site.close()
        assert seen == ["Basic ZXZlOnMzY3JldA=="]
        assert "s3cret" not in str(caught.value)
        assert "no database 'nothing'" in str(caught.value)

    asyncio.run(run())


def test_a_note_that_somebody_else_wrote_meanwhile_is_written_over() -> None:
    """As with servers that compare revisions of notes, such as PouchDB's."""
    conflicts = iter([True])

    def once(method: str, path: str) -> tuple[int, bytes] | None:
        is_conflict = method == "PUT" and "_local" in path and next(conflicts, False)
        return (409, b'{"error": "conflict"}') if is_conflict else None

    async def run() -> None:
        site = Site()
        async with serving(site, answering(once)), aiohttp.ClientSession() as session:
            remote = CouchClient(site.at(), session, ReplicatorSettings())
            assert await remote.put_note("a", {"n": 1}) == "0-1"
            assert await site.database.note("a") == {"n": 1, "_rev": "0-1"}
        site.close()

    asyncio.run(run())


def test_the_delay_doubles_up_to_a_limit_with_jitter() -> None:
    class Half(Random):
        def uniform(self, a: float, b: float) -> float:
            return (a + b) / 2

    site = Site()
    settings = ReplicatorSettings(first_delay_s=1, longest_delay_s=10)
    session: Any = None
    replicator = Replicator(site.database, "http://host/db", session, Half(), print, settings)
    backoff = replicator._backoff()
    assert [backoff.next_s() for _ in range(5)] == [1, 2, 4, 8, 10]
    backoff.attempts = 10_000
    assert backoff.next_s() == 10
    site.close()


def test_a_reply_has_one_revision_with_and_without_its_output() -> None:
    """Not all sites have the output: a CouchDB between them must not see a conflict."""
    output = "a line that is longer than a hash\n"
    origin = Origin("site2", "1")
    whole = Reply("n", origin, 1, OpId(origin, 1), "inc", Status.OK, output=output, output_hash=hash_of_output(output))
    cut = whole.without_output()
    assert couch_document(whole).rev == couch_document(cut).rev
    assert couch_document(whole).rev != couch_document(replace(whole, output_hash="0" * 24)).rev
    assert couch_document(replace(whole, output_hash="")).rev != couch_document(replace(cut, output_hash="")).rev
    for one in (whole, cut):
        assert parse_document(msgspec.json.decode(couch_document(one).as_couch()))[0] == whole
