"""What goes to peers: the messages of the engine.

Messages go over warm connections, the first at once; those that wait go together with the next request.

While a request is under way, messages gather for a moment, so that under load few requests carry many. To a distant
site the next request does not wait for the response: several are under way, each with what gathered meanwhile.

A request carries documents as the store keeps them, each once (`docs`), and the messages that they belong to
(`cheops`): what the sender knows, what it asks for, and the ids of its documents. The sender does not ask first what
the peer lacks: the engine keeps count of that.

Large requests are packed in a thread, so that heartbeats and clients do not wait for that. One that is too large for
the peer goes in parts. A single message that is too large is dropped alone: what else waits for the peer goes on.

Nothing else is kept for later: a message that cannot be delivered is dropped, and the peer is probed. The engine knows
what a peer has acknowledged, and sends the rest when it is up. So a slow or dead peer costs a bounded queue, and never
slows the others down.
"""

import asyncio
import gzip
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

import aiohttp
import msgspec

from cheops.backoff import Backoff
from cheops.engine.documents import Document, Message, size_of
from cheops.errors import CheopsError, Fault
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, Reply
from cheops.peers.client import PeerClient, connection_problem, read_response
from cheops.peers.couchdb.documents import CouchDocument, RefusedError, couch_document, parse_document, shared_key
from cheops.store import codec
from cheops.store.codec import MAX_DOCUMENT_BYTES, MAX_MESSAGE_BYTES
from cheops.store.interface import CodecError
from cheops.text import printable, shortened

MESSAGES_PATH = "peer/messages"  # below the address of an agent
_MOST_WAITING = 5_000  # messages to one peer; the oldest goes first, since the engine repeats what is not acknowledged
_MOST_BYTES = 4_000_000  # in one request, roughly; a larger one would hold up what comes after it
_MOST_ANSWER = 65_536  # bytes
_MOST_COUCH_BYTES = 100_000  # what CouchDB's members (`_id`, `_rev`) add to a document
INVALID = "invalid document"  # the reason of a refusal
LARGE_BYTES = 200_000  # packed and unpacked in a thread: from here on it takes milliseconds
_COMPRESS_FROM = 4_096  # bytes; below, compression costs more time than it saves
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=30)
_GATHER_S = 0.005  # how long messages gather while another request is under way
_MOST_UNDER_WAY = 8  # requests to one peer
_PAUSE_S, _PAUSE_MOST_S = 0.05, 5.0  # after one that failed
_log = logging.getLogger(__name__)


class EnvelopeError(CheopsError):
    """A peer sent a body that does not have the form described above."""

    fault = Fault.PEER
    status = 400


class _Part(msgspec.Struct):
    message: msgspec.Raw
    ids: list[str] = []  # of the documents that belong to it


class _Envelope(msgspec.Struct):
    site: Annotated[str, msgspec.Meta(max_length=128)]
    messages: list[_Part]


class _Body(msgspec.Struct):
    docs: list[msgspec.Raw]
    cheops: _Envelope


_bodies = msgspec.json.Decoder(_Body)


def pack(site: str, messages: Iterable[Message]) -> bytes:
    """The body of a request."""
    docs: dict[str, msgspec.Raw] = {}
    revisions: dict[str, str] = {}
    parts = []
    for message in messages:
        ids = []
        documents: tuple[Document, ...] = (*message.matrices, *message.ops, *message.replies)
        for document in documents:
            one = couch_document(document)
            # Two contents under one id are proof against their origin, so both must arrive.
            name = one.id if revisions.setdefault(one.id, one.rev) == one.rev else _with_revision(one)
            docs[name] = one.as_couch()
            ids.append(name)
        # Several messages may carry the same document (a matrix, say): the body has it once, and they name its id.
        bare = msgspec.structs.replace(message, ops=(), replies=(), matrices=())
        parts.append(_Part(msgspec.Raw(codec.encode_message(bare)), ids))
    return msgspec.json.encode(_Body(list(docs.values()), _Envelope(site, parts)))


def _with_revision(document: CouchDocument) -> str:
    """The name of a document whose id another one in the same body has. No id has a '#': see codec."""
    return f"{document.id}#{document.rev}"


class Unpacked(NamedTuple):
    """What a body holds. A document or message that is wrong costs its sender that one, and nothing else."""

    site: str
    messages: list[Message]
    refused: list[RefusedError]


def unpack(body: bytes) -> Unpacked:
    """The sender and its messages, with everything checked; raises EnvelopeError for a body that is none at all."""
    try:
        read = _bodies.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EnvelopeError(f"not messages of a site: {error}") from None
    documents: dict[str, Document] = {}
    refused: list[RefusedError] = []
    for raw in read.docs:
        try:
            document, seen = parse_document(_plain(raw))
            documents.setdefault(seen.id, document)
            documents[_with_revision(seen)] = document
        except RefusedError as error:
            refused.append(error)
    messages = []
    for part in read.cheops.messages:
        try:
            messages.append(_message(part, documents))
        except CodecError as error:
            refused.append(RefusedError("", "", str(error)))
    return Unpacked(read.cheops.site, messages, refused)


def _plain(raw: msgspec.Raw) -> object:
    """A document as plain data, checked for its size before anything grows with it; raises RefusedError."""
    data = bytes(raw)
    if len(data) > MAX_DOCUMENT_BYTES + _MOST_COUCH_BYTES:
        raise RefusedError("", "", f"a document of {len(data):,} bytes; at most {MAX_DOCUMENT_BYTES:,} are accepted")
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("", "", f"not a document: {error}") from None


def _message(part: _Part, documents: dict[str, Document]) -> Message:
    """A message with its documents, as far as they are there; raises CodecError."""
    bare = codec.decode_message(bytes(part.message))
    own = [documents[id_] for id_ in part.ids if id_ in documents]
    # A document of another resource stays in: the engine refuses it, and counts that. See engine/intake.py.
    whole = msgspec.structs.replace(
        bare,
        ops=tuple(d for d in own if isinstance(d, Operation)),
        replies=tuple(d for d in own if isinstance(d, Reply)),
        matrices=tuple(d for d in own if isinstance(d, Matrix)),
    )
    missing = [id_ for id_ in part.ids if id_ not in documents]
    return _without_counts(whole, missing) if missing else whole


def _without_counts(message: Message, missing: list[str]) -> Message:
    """A message some of whose documents are missing, without what would count them as received."""
    if message.snapshot or message.piece:  # it is valid only as a whole
        return msgspec.structs.replace(message, ops=(), replies=(), snapshot=None, piece=None, replies_after={})
    keys = [shared_key(id_) for id_ in missing]
    holes = {str(key[2]) for key in keys if key is not None and key[0] == "reply"}
    after = {origin: n for origin, n in message.replies_after.items() if origin not in holes}
    return msgspec.structs.replace(message, replies_after={} if None in keys else after)


@dataclass(slots=True)
class LinkCounts:
    """What was sent to one peer."""

    messages: int = 0
    requests: int = 0
    bytes: int = 0
    failures: int = 0
    dropped: int = 0


class PeerLinks:
    """The links of one site. `report_unreachable` gets each peer that could not be reached."""

    def __init__(
        self,
        site: str,
        client: PeerClient,
        report_unreachable: Callable[[str], None],
    ) -> None:
        self._site = site
        self._client = client
        self._report_unreachable = report_unreachable
        self._links: dict[str, _PeerLink] = {}

    def send(self, peer: str, message: Message) -> None:
        if peer not in self._links:
            self._links[peer] = _PeerLink(peer, self._deliver)
        self._links[peer].put(message)

    def counts(self) -> dict[str, LinkCounts]:
        return {peer: link.counts for peer, link in self._links.items()}

    def waiting(self, peer: str) -> int:
        return len(self._links[peer].queue) if peer in self._links else 0

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    async def _deliver(self, peer: str, messages: list[Message], counts: LinkCounts) -> bool:
        """Returns whether the peer has them."""
        if self._client.address_of(peer) is None:
            counts.dropped += len(messages)
            return True  # the engine sends them again when the peer comes up with an address
        body, packed = await _packed(self._site, messages)
        if len(body) > MAX_MESSAGE_BYTES:
            return await self._deliver_parts(peer, messages, counts, f"it has {len(body):,} bytes")
        headers = {"Content-Type": "application/json", **({"Content-Encoding": "gzip"} if packed else {})}
        try:
            async with self._client.request(
                peer, "POST", f"/{MESSAGES_PATH}", data=packed or body, headers=headers, timeout=_TIMEOUT
            ) as response:
                text = await read_response(response, _MOST_ANSWER)  # an unread response would close the connection
                if response.status < 300:
                    counts.messages += len(messages)
                    counts.requests += 1
                    counts.bytes += len(packed or body)
                    return True
                why = f"{response.status}: {text[:300].decode(errors='replace')}"
                is_too_large = response.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why, is_too_large = connection_problem(error), False
        if is_too_large:
            return await self._deliver_parts(peer, messages, counts, why)
        counts.failures += 1
        _log.info("%s did not take messages: %s", peer, why)
        self._report_unreachable(peer)
        return False

    async def _deliver_parts(self, peer: str, messages: list[Message], counts: LinkCounts, why: str) -> bool:
        """Deliver messages that are too large together; one that is too large by itself is dropped."""
        if len(messages) == 1:
            counts.dropped += 1
            about = printable(shortened(messages[0].resource))
            _log.error("a message to %s about '%s' is too large, and is not sent: %s", peer, about, why)
            return True
        half = len(messages) // 2
        parts = (messages[:half], messages[half:])
        return all([await self._deliver(peer, part, counts) for part in parts])


async def _packed(site: str, messages: list[Message]) -> tuple[bytes, bytes]:
    """The body of a request, and the same compressed; empty if that is not worth it."""

    def packed() -> tuple[bytes, bytes]:
        body = pack(site, messages)
        is_worth = _COMPRESS_FROM < len(body) <= MAX_MESSAGE_BYTES
        return body, gzip.compress(body, compresslevel=1) if is_worth else b""

    is_large = sum(map(size_of, messages)) > LARGE_BYTES
    return await asyncio.to_thread(packed) if is_large else packed()


class _PeerLink:
    """The queue of one peer, and the task that empties it."""

    def __init__(self, peer: str, deliver: Callable[..., Any]) -> None:
        self.peer = peer
        self.queue: deque[Message] = deque()
        self.counts = LinkCounts()
        self._deliver = deliver
        self._filled = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        self._backoff = Backoff(_PAUSE_S, _PAUSE_MOST_S)
        self._loop = asyncio.get_running_loop()
        self._resume_at_s = self._loop.time()
        self._task = self._loop.create_task(self._run())

    def put(self, message: Message) -> None:
        if len(self.queue) >= _MOST_WAITING:
            self.queue.popleft()
            self.counts.dropped += 1
        self.queue.append(message)
        self._filled.set()

    def close(self) -> None:
        for task in (self._task, *self._under_way):
            task.cancel()

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            await self._wait_for_turn()
            if messages := self._take():
                task = self._loop.create_task(self._send(messages))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    async def _wait_for_turn(self) -> None:
        """Wait until the next request may be sent."""
        while (left_s := self._resume_at_s - self._loop.time()) > 0:
            await asyncio.sleep(left_s)
        while self._under_way:
            gather_s = _GATHER_S if len(self._under_way) < _MOST_UNDER_WAY else None
            done, _ = await asyncio.wait(self._under_way, timeout=gather_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return

    async def _send(self, messages: list[Message]) -> None:
        try:
            delivered = await self._deliver(self.peer, messages, self.counts)
        except Exception:  # whatever it was, the next message must be sent
            _log.exception("messages to %s could not be sent", self.peer)
            self.counts.failures += 1
            delivered = False
        if delivered:
            self._backoff.reset()
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Drop what waits too: the engine sends it again when the peer is up."""
        self.counts.dropped += len(self.queue)
        self.queue.clear()
        self._filled.clear()
        now_s = self._loop.time()
        if now_s >= self._resume_at_s:  # several requests that fail together count as one failure
            self._resume_at_s = now_s + self._backoff.next_s()

    def _take(self) -> list[Message]:
        taken, size = [], 0
        while self.queue and size < _MOST_BYTES:
            message = self.queue.popleft()
            size += size_of(message)
            taken.append(message)
        if not self.queue:
            self._filled.clear()
        return taken
