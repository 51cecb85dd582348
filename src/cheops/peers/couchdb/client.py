"""A foreign database, as the replicator uses it: one method per request of the protocol.

Whatever goes wrong on the way is a RemoteError: no connection, a cut in the middle, an error status, an
answer that is not what the protocol says, or one that is larger than we are ready to read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from cheops.peers.client import decode_json
from cheops.peers.couchdb.database import MIB
from cheops.peers.couchdb.documents import StoredDocument
from cheops.peers.couchdb.errors import BadUrlError, RemoteError, TooLargeAnswerError
from cheops.text import printable, shortened


@dataclass(frozen=True, slots=True)
class ReplicatorSettings:
    """Of the client end."""

    batch: int = 100  # changes per round
    send_bytes: int = 4 * MIB  # of documents in one request, unless a single one is larger
    answer_bytes: int = 32 * MIB
    timeout_s: float = 60.0
    heartbeat_s: float = 10.0
    checkpoint_s: float = 5.0
    checkpoint_changes: int = 1_000
    first_delay_s: float = 0.2
    longest_delay_s: float = 60.0


T = TypeVar("T")
Seq = str | int  # opaque; CouchDB writes texts, PouchDB numbers
_JSON = {"Accept": "application/json", "Content-Type": "application/json"}
_NO_BULK_GET = (400, 404, 405, 501)


class Rev(msgspec.Struct):
    rev: str


class Row(msgspec.Struct):
    id: str
    changes: list[Rev]
    deleted: bool = False


class Changes(msgspec.Struct):
    results: list[Row]
    last_seq: Seq


class Missing(msgspec.Struct):
    missing: list[str]


class Written(msgspec.Struct):
    """What became of a document; CouchDB names only those that it did not take."""

    id: str = ""
    error: str = ""
    reason: str = ""


class _Got(msgspec.Struct):
    ok: Any = None


class _GotDocs(msgspec.Struct):
    docs: list[_Got]


class _BulkGot(msgspec.Struct):
    results: list[_GotDocs]


class _Note(msgspec.Struct):
    rev: str


class _Failure(msgspec.Struct):
    error: Any = ""
    reason: Any = ""


def database_url(text: str) -> URL:
    """The address of a database, such as `https://user:password@host:5984/name`; raises BadUrlError."""
    try:
        url = URL(text.rstrip("/"))
        is_good = url.scheme in ("http", "https") and url.host and url.path.strip("/") and not url.query_string
    except ValueError:
        is_good = False
    if not is_good:
        raise BadUrlError("not the address of a database, which looks like https://user:password@host:5984/name")
    return url


class CouchClient:
    """One database at one address."""

    def __init__(self, url: str, session: aiohttp.ClientSession, settings: ReplicatorSettings) -> None:
        self._base = database_url(url)
        self.name = str(self._base.with_user(None))  # for messages: no credentials
        self._session = session
        self._settings = settings
        self._note_revs: dict[str, str] = {}
        self._has_bulk_get = True

    async def note(self, id_: str) -> dict[str, Any] | None:
        try:
            note = await self._ask(dict[str, Any], "GET", f"_local/{quote(id_, safe='')}")
        except RemoteError as error:
            if error.answered == 404:
                return None
            raise
        self._note_revs[id_] = str(note.get("_rev", ""))
        return note

    async def put_note(self, id_: str, content: Mapping[str, Any]) -> str:
        """Keep a note there. If somebody else wrote it since we read it, once more, over that."""
        try:
            return await self._put_note(id_, content)
        except RemoteError as error:
            if error.answered != 409:
                raise
        await self.note(id_)
        return await self._put_note(id_, content)

    async def _put_note(self, id_: str, content: Mapping[str, Any]) -> str:
        note = {**content, "_id": f"_local/{id_}"}
        if self._note_revs.get(id_):
            note["_rev"] = self._note_revs[id_]
        self._note_revs[id_] = (await self._ask(_Note, "PUT", f"_local/{quote(id_, safe='')}", note)).rev
        return self._note_revs[id_]

    async def changes(self, since: Seq, limit: int, wait_s: float | None) -> Changes:
        """What changed; with `wait_s`, wait up to so long for something to change (0: for ever)."""
        params = {"since": str(since), "limit": str(limit), "style": "all_docs", "feed": "normal"}
        if wait_s is not None:
            patience = ("timeout", wait_s) if wait_s else ("heartbeat", self._settings.heartbeat_s)
            params |= {"feed": "longpoll", patience[0]: str(int(patience[1] * 1000))}
        return await self._ask(Changes, "GET", f"_changes?{urlencode(params)}", longer_s=wait_s or 0)

    async def revs_diff(self, revs: Mapping[str, Sequence[str]]) -> dict[str, Missing]:
        return await self._ask(dict[str, Missing], "POST", "_revs_diff", revs)

    async def bulk_docs(self, documents: Sequence[StoredDocument]) -> list[Written]:
        body = {"new_edits": False, "docs": [one.as_couch(history=True) for one in documents]}
        return await self._ask(list[Written], "POST", "_bulk_docs", body)

    async def ensure_full_commit(self) -> None:
        try:
            await self._ask(dict[str, Any], "POST", "_ensure_full_commit", {})
        except RemoteError as error:
            if error.answered not in (404, 405, 501):  # CouchDB may drop it: all its writes are durable
                raise

    async def documents(self, revs: Mapping[str, str]) -> list[Any]:
        """These documents, as they were sent, as far as they are there: `_bulk_get`, or one by one."""
        if self._has_bulk_get:
            try:
                return await self._bulk_get(revs)
            except RemoteError as error:
                if error.answered not in _NO_BULK_GET:
                    raise
                self._has_bulk_get = False
        got = [await self._get(id_, rev) for id_, rev in revs.items()]
        return [document for document in got if document is not None]

    async def _bulk_get(self, revs: Mapping[str, str]) -> list[Any]:
        asked = {"docs": [{"id": id_, "rev": rev} for id_, rev in revs.items()]}
        got = await self._ask(_BulkGot, "POST", "_bulk_get?revs=true", asked)
        return [one.ok for result in got.results for one in result.docs if one.ok is not None]

    async def _get(self, id_: str, rev: str) -> Any:
        try:
            return await self._ask(Any, "GET", f"{quote(id_, safe='')}?revs=true&rev={quote(rev, safe='')}")
        except RemoteError as error:
            if error.answered == 404:
                return None
            raise

    async def _ask(self, kind: type[T], method: str, path: str, body: object = None, longer_s: float = 0) -> T:
        """One request, and its answer as it should look."""
        url = URL(f"{self._base}/{path}", encoded=True)
        silence_s = self._settings.timeout_s + longer_s
        timeout = aiohttp.ClientTimeout(total=None, connect=self._settings.timeout_s, sock_read=silence_s)
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(
                method, url, data=data, headers=_JSON, timeout=timeout, allow_redirects=False
            ) as got:
                raw = await self._read(got)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise self._error(method, path, shortened(why, 200)) from None
        if got.status >= 300:
            raise self._refusal(method, path, got.status, raw)
        try:
            return decode_json(raw, kind)
        except ValueError as error:
            raise self._error(method, path, f"the answer is not what the protocol says: {error}") from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._settings.answer_bytes:
                response.close()
                raise TooLargeAnswerError(f"{self.name}: an answer of more than {size:,} bytes is not read")
            parts.append(part)
        return b"".join(parts)

    def _refusal(self, method: str, path: str, status: int, raw: bytes) -> RemoteError:
        try:
            failure = decode_json(raw, _Failure)
        except ValueError:
            failure = _Failure()
        said = printable(shortened(f"{failure.error}: {failure.reason}", 200)) if failure.error else "no reason"
        return self._error(method, path, f"answered {status} ({said})", status)

    def _error(self, method: str, path: str, what: str, answered: int | None = None) -> RemoteError:
        return RemoteError(f"{self.name}: {method} {shortened(path)}: {printable(what)}", answered)
