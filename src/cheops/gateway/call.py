"""One request to a service and its answer, on a connection that is its own for that time. HTTP/1.1 by h11.

The body is sent while the answer is awaited, so a service may answer before it has read everything. What it
sends is taken at the pace of whoever reads it from here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import h11

from cheops.config.gateway import GatewayConfig
from cheops.gateway.errors import GatewayRequestError, UpstreamError
from cheops.gateway.seam import Head, Headers
from cheops.gateway.upload import Upload
from cheops.gateway.wire import Wire

_MOST_HEAD_BYTES = 128 * 1024
_LOOK_S = 1.0  # how often to look whether waiting makes sense

Informed: TypeAlias = Callable[[int, bytes, Headers], Awaitable[None]]
BodyEvent: TypeAlias = h11.Data | h11.EndOfMessage


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer. 101 means that the connection belongs to another protocol from here on."""

    status: int
    reason: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an answer may take, and how to see before that it will not come (its site is down)."""

    answer_s: float
    is_hopeless: Callable[[], bool] = lambda: False


class Call:
    """A request under way. `begin` it, read it with `event_now` and `event`, and `finish` it in any case."""

    def __init__(
        self, wire: Wire, head: Head, upload: Upload, settings: GatewayConfig, patience: Patience
    ) -> None:
        self.wire = wire
        self.heard = False  # whether anything came back
        self.upload = upload
        self._head = head
        self._settings = settings
        self._patience = patience
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD_BYTES)
        self._sending: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()

    # -- sending -----------------------------------------------------------------------------------------

    async def begin(self, informed: Informed) -> Answer:
        """Send the request, and wait for its answer to begin. Raises UpstreamError, or what the sender of
        the body did wrong (GatewayRequestError, GoneError)."""
        self._send_head()
        while True:
            event = await self._awaited_head()
            match event:
                case h11.InformationalResponse(status_code=101) | h11.Response():
                    return self._answer(event)
                case h11.InformationalResponse():
                    await informed(event.status_code, bytes(event.reason), _decoded(event.headers))
                case _:
                    raise self._broke("closed the connection without an answer")

    def _send_head(self) -> None:
        head = self._head
        try:
            request = h11.Request(
                method=head.method.encode("latin-1"),
                target=head.target.encode("latin-1"),
                headers=[(n.encode("latin-1"), v.encode("latin-1")) for n, v in head.headers],
            )
            out = [self._http.send(request)]
            whole = self.upload.at_once()
            if whole is not None:
                out += self._last(whole)
        except h11.LocalProtocolError as error:
            raise GatewayRequestError(f"the request cannot be passed on: {error}") from None
        self.wire.write(b"".join(out))
        if whole is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_body())
        else:
            self._sent.set()

    def _last(self, piece: bytes) -> list[bytes]:
        out = [self._http.send(h11.Data(data=piece))] if piece else []
        trailers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in self.upload.trailers]
        out.append(self._http.send(h11.EndOfMessage(headers=trailers)))
        return out

    async def _send_body(self) -> None:
        try:
            async for piece in self.upload.pieces():
                for data in self._http.send_with_data_passthrough(h11.Data(data=piece)) or ():
                    self.wire.write(data)
                await self.wire.drain(self._settings.stall_timeout_s)
            for data in self._last(b""):
                self.wire.write(data)
            self._sent.set()
        except (OSError, TimeoutError, h11.LocalProtocolError):
            self._sent.set()  # it does not listen any more; what it says, if anything, counts
        except BaseException:
            self.wire.abort()  # an incomplete request must not look like a complete one
            raise

    def _failed_sender(self) -> BaseException | None:
        """What the client did wrong while its body was sent on."""
        task = self._sending
        if task is None or not task.done() or task.cancelled():
            return None
        return task.exception()

    # -- receiving ---------------------------------------------------------------------------------------

    def event_now(self) -> BodyEvent | None:
        """The next piece of the answer's body, or its end, if that is here already."""
        while True:
            event = self._parsed()
            if event is not h11.NEED_DATA:
                return self._body_event(event)
            more = self.wire.read_now()
            if not more:
                return None
            self._http.receive_data(more)

    async def event(self) -> BodyEvent:
        """The next piece of the answer's body, or its end."""
        while True:
            event = self._parsed()
            if event is not h11.NEED_DATA:
                return self._body_event(event)
            self._http.receive_data(await self._read(self._settings.silence_timeout_s))

    def _body_event(self, event: object) -> BodyEvent:
        if isinstance(event, h11.Data | h11.EndOfMessage):
            return event
        raise self._broke("broke off its answer")

    async def _awaited_head(self) -> object:
        while True:
            event = self._parsed()
            if event is not h11.NEED_DATA:
                return event
            more = await self._read(self._patience.answer_s)
            self.heard = self.heard or bool(more)
            self._http.receive_data(more)

    async def _read(self, limit_s: float) -> bytes:
        """In short naps: while the request is being sent the answer has time, and a dead site has none."""
        waited_s = 0.0
        while True:
            nap_s = min(_LOOK_S, limit_s)
            try:
                return await self.wire.read(nap_s)
            except TimeoutError:
                waited_s = waited_s + nap_s if self._sent.is_set() else 0.0
            if waited_s >= limit_s:
                raise self._broke(f"no answer within {limit_s:g} s", 504) from None
            if waited_s and self._patience.is_hopeless():
                raise self._broke("went down while it was asked", 504)

    def _parsed(self) -> object:
        if failure := self._failed_sender():
            raise failure
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            if failure := self._failed_sender():
                raise failure from None
            if self.wire.has_ended:
                raise self._broke("broke off its answer" if self.heard else "closed the connection") from None
            raise self._broke(f"did not answer in HTTP: {error}".replace(",", ";")) from None

    def _broke(self, why: str, status: int = 502) -> UpstreamError:
        return UpstreamError(
            f"the service was asked, but: {why}", why, may_have_had_effect=True, status=status
        )

    def _answer(self, event: h11.Response | h11.InformationalResponse) -> Answer:
        headers = _decoded(event.headers)
        names = [name.lower() for name, _ in headers]
        if "transfer-encoding" in names and "content-length" in names:
            raise self._broke("its answer has both a length and chunks")
        return Answer(event.status_code, bytes(event.reason), headers)

    @property
    def beyond(self) -> bytes:
        """What came after a 101: the first bytes of the other protocol."""
        return bytes(self._http.trailing_data[0])

    # -- the end -----------------------------------------------------------------------------------------

    async def finish(self) -> bool:
        """Whether the connection can serve another request. If not, it is closed."""
        if self._sending:
            self._sending.cancel()
            await asyncio.wait({self._sending})
            self._failed_sender()  # whoever had to know of it does
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if done and not self._http.trailing_data[0] and self.wire.is_quiet:
            return True
        self.wire.abort()
        return False


def _decoded(headers: h11._headers.Headers) -> Headers:
    return tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in headers.raw_items())
