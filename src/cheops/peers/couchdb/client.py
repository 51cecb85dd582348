"""A remote database, as the replicator uses it: one method per request of the protocol.

Whatever fails is a RemoteError: no connection, a broken connection, an error status, a response that does not follow
the protocol, or one that is larger than the limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from cheops.errors import CheopsError, ClientError, Fault
from cheops.peers.client import decode_json
from cheops.peers.couchdb.database import MIB
from cheops.peers.couchdb.documents import CouchDocument
from cheops.text import printable, shortened


@dataclass(frozen=True, slots=True)
class ReplicatorSettings:
    """Limits and times of a replicator."""

    batch: int = 100  # changes per round
    send_bytes: int = 4 * MIB  # of documents in one request, unless a single one is larger
    response_bytes: int = 32 * MIB
    timeout_s: float = 60.0
    heartbeat_s: float = 10.0
    checkpoint_s: float = 5.0
    checkpoint_changes: int = 1_000
    first_delay_s: float = 0.2
    longest_delay_s: float = 60.0


class RemoteError(CheopsError):
    """The other database did not respond as the protocol says; what failed is tried again later."""

    fault = Fault.PEER
    definite = False
    status = 502

    def __init__(self, message: str, response_status: int | None = None) -> None:
        super().__init__(message)
        self.response_status = response_status  # None: there was no response


class ResponseTooLargeError(RemoteError):
    """The response is larger than the limit: request less at once."""


T = TypeVar("T")
Seq = str | int  # opaque; CouchDB sends strings, PouchDB numbers
_JSON = {"Accept": "application/json", "Content-Type": "application/json"}
_NO_BULK_GET = (400, 404, 405, 501)  # from servers without `_bulk_get`, such as CouchDB 1


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
    """The result for one document; CouchDB lists only those that it refused."""

    id: str = ""
    error: str = ""
    reason: str = ""


class _BulkGetDoc(msgspec.Struct):
    ok: Any = None


class _BulkGetResult(msgspec.Struct):
    docs: list[_BulkGetDoc]


class _BulkGetResponse(msgspec.Struct):
    results: list[_BulkGetResult]


class _Note(msgspec.Struct):
    rev: str


class _Failure(msgspec.Struct):
    error: Any = ""
    reason: Any = ""


def database_url(text: str) -> URL:
    """The address of a database, such as `https://user:password@host:5984/name`; raises ClientError."""
    try:
        url = URL(text.rstrip("/"))
        is_good = url.scheme in ("http", "https") and url.host and url.path.strip("/") and not url.query_string
    except ValueError:
        is_good = False
    if not is_good:
        # The text is not repeated: it may hold a password.
        raise ClientError("not the address of a database, which looks like https://user:password@host:5984/name")
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
            note = await self._request(dict[str, Any], "GET", f"_local/{quote(id_, safe='')}")
        except RemoteError as error:
            if error.response_status == 404:
                return None
            raise
        self._note_revs[id_] = str(note.get("_rev", ""))
        return note

    async def put_note(self, id_: str, content: Mapping[str, Any]) -> str:
        """Write a note. If it changed since we read it (409), read its revision and overwrite it."""
        try:
            return await self._put_note(id_, content)
        except RemoteError as error:
            if error.response_status != 409:
                raise
        await self.note(id_)
        return await self._put_note(id_, content)

    async def _put_note(self, id_: str, content: Mapping[str, Any]) -> str:
        note = {**content, "_id": f"_local/{id_}"}
        if self._note_revs.get(id_):
            note["_rev"] = self._note_revs[id_]
        self._note_revs[id_] = (await self._request(_Note, "PUT", f"_local/{quote(id_, safe='')}", note)).rev
        return self._note_revs[id_]

    async def changes(self, since: Seq, limit: int, wait_s: float | None) -> Changes:
        """The next changes; with `wait_s`, wait that long for the first one (0: without end)."""
        params = {"since": str(since), "limit": str(limit), "style": "all_docs", "feed": "normal"}
        if wait_s is not None:
            name, seconds = ("timeout", wait_s) if wait_s else ("heartbeat", self._settings.heartbeat_s)
            params |= {"feed": "longpoll", name: str(int(seconds * 1000))}
        return await self._request(Changes, "GET", f"_changes?{urlencode(params)}", longer_s=wait_s or 0)

    async def revs_diff(self, revs: Mapping[str, Sequence[str]]) -> dict[str, Missing]:
        return await self._request(dict[str, Missing], "POST", "_revs_diff", revs)

    async def bulk_docs(self, documents: Sequence[CouchDocument]) -> list[Written]:
        body = {"new_edits": False, "docs": [one.as_couch(history=True) for one in documents]}
        return await self._request(list[Written], "POST", "_bulk_docs", body)

    async def ensure_full_commit(self) -> None:
        try:
            await self._request(dict[str, Any], "POST", "_ensure_full_commit", {})
        except RemoteError as error:
            if error.response_status not in (404, 405, 501):  # CouchDB may drop it: all its writes are durable
                raise

    async def documents(self, revs: Mapping[str, str]) -> list[Any]:
        """Those of these documents that exist there, as sent: with `_bulk_get`, or one by one."""
        if self._has_bulk_get:
            try:
                return await self._bulk_get(revs)
            except RemoteError as error:
                if error.response_status not in _NO_BULK_GET:
                    raise
                self._has_bulk_get = False
        got = [await self._get(id_, rev) for id_, rev in revs.items()]
        return [document for document in got if document is not None]

    async def _bulk_get(self, revs: Mapping[str, str]) -> list[Any]:
        body = {"docs": [{"id": id_, "rev": rev} for id_, rev in revs.items()]}
        got = await self._request(_BulkGetResponse, "POST", "_bulk_get?revs=true", body)
        return [one.ok for result in got.results for one in result.docs if one.ok is not None]

    async def _get(self, id_: str, rev: str) -> Any:
        try:
            return await self._request(Any, "GET", f"{quote(id_, safe='')}?revs=true&rev={quote(rev, safe='')}")
        except RemoteError as error:
            if error.response_status == 404:
                return None
            raise

    async def _request(self, kind: type[T], method: str, path: str, body: object = None, longer_s: float = 0) -> T:
        """Send one request, and decode its response; raises RemoteError."""
        url = URL(f"{self._base}/{path}", encoded=True)
        silence_s = self._settings.timeout_s + longer_s
        # No limit for the whole: a large batch over a slow link takes as long as it takes, but not silently.
        timeout = aiohttp.ClientTimeout(total=None, connect=self._settings.timeout_s, sock_read=silence_s)
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(
                method, url, data=data, headers=_JSON, timeout=timeout, allow_redirects=False
            ) as response:
                raw = await self._read(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise self._error(method, path, shortened(why, 200)) from None
        if response.status >= 300:
            raise self._refusal(method, path, response.status, raw)
        try:
            return decode_json(raw, kind)
        except ValueError as error:
            raise self._error(method, path, f"the response does not follow the protocol: {error}") from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > self._settings.response_bytes:
                response.close()
                raise ResponseTooLargeError(f"{self.name}: a response of more than {size:,} bytes is not read")
            parts.append(part)
        return b"".join(parts)

    def _refusal(self, method: str, path: str, status: int, raw: bytes) -> RemoteError:
        try:
            failure = decode_json(raw, _Failure)
        except ValueError:
            failure = _Failure()
        reason = printable(shortened(f"{failure.error}: {failure.reason}", 200)) if failure.error else "no reason"
        return self._error(method, path, f"answered {status} ({reason})", status)

    def _error(self, method: str, path: str, what: str, status: int | None = None) -> RemoteError:
        return RemoteError(f"{self.name}: {method} {shortened(path)}: {printable(what)}", status)
