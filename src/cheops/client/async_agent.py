"""`AsyncAgent`: the client for programs with an event loop, over aiohttp."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec
from yarl import URL

from cheops.api.endpoints import Endpoint
from cheops.api.endpoints.declaration import NDJSON
from cheops.api.endpoints.resources import LIST_RESOURCES, ResourceFilter
from cheops.api.models import from_json
from cheops.api.models.operations import Accepted, SiteAnswer, SubmitRequest, Wait
from cheops.api.models.resources import ResourceSummary
from cheops.client.agent import event_in
from cheops.client.methods import AgentMethods, Call, call_of, events_call, submit_call
from cheops.client.target import DEFAULT_URL, AgentError, Target, refusal, short_path, unreachable
from cheops.notify.event import Event

T = TypeVar("T")
P = TypeVar("P", bound=msgspec.Struct)
B = TypeVar("B")
_STREAM_S = 60.0  # a stream of events that is silent for longer is broken: agents send comments


class AsyncAgent(AgentMethods):
    """An agent at an address, to be used as a context: `async with AsyncAgent(url) as agent`."""

    def __init__(self, url: str | Target = DEFAULT_URL, *, token: str = "", ca: str = "") -> None:
        """`token` authenticates the client; `ca` is a file with the authority's certificate, if it is not public."""
        self.target = url if isinstance(url, Target) else Target(url.rstrip("/"), token, ca)
        self._session: aiohttp.ClientSession | None = None
        self._held = ExitStack()  # keeps the folder of a Unix socket open, which its short path refers to

    @property
    def url(self) -> str:
        return self.target.url

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=self._connector())
        return self

    def _connector(self) -> aiohttp.BaseConnector:
        if path := self.target.socket:
            return aiohttp.UnixConnector(self._held.enter_context(short_path(path)))
        return aiohttp.TCPConnector(ssl=self.target.ssl_context() or True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session:
            await self._session.close()
            self._session = None
        self._held.close()

    async def call(
        self, endpoint: Endpoint[T, P, B], *names: str, parameters: P | None = None, body: B | None = None
    ) -> T:
        """Send a request to an endpoint. `names` fill the parameters of its path, in order."""
        return await self.send(call_of(endpoint, *names, parameters=parameters, body=body))

    async def resources(self, prefix: str = "") -> AsyncIterator[ResourceSummary]:
        """The resources of all pages."""
        cursor: str | None = ""
        while cursor is not None:
            page = await self.call(LIST_RESOURCES, parameters=ResourceFilter(prefix=prefix, cursor=cursor))
            for one in page.resources:
                yield one
            cursor = page.next

    async def submit(
        self, id_: str, request: SubmitRequest, *, wait: Wait = Wait.ALL, timeout_s: float = 30.0
    ) -> Accepted:
        """Submit an operation, and return the responses of the sites that came in time."""
        return await self.send(submit_call(id_, request, wait, timeout_s))

    async def answers(
        self, id_: str, request: SubmitRequest, *, wait: Wait = Wait.ALL, timeout_s: float = 30.0
    ) -> AsyncIterator[SiteAnswer]:
        """Submit an operation, and yield each site's response when it comes; at the end one with PENDING for each site
        that did not respond in time."""
        async for line in self._lines(replace(submit_call(id_, request, wait, timeout_s), accept=NDJSON)):
            yield from_json(line, SiteAnswer)

    async def events(self, id_: str | None = None, last: str = "") -> AsyncIterator[Event]:
        """Events as they happen; ends when the agent is stopped, or with an error."""
        async for line in self._lines(events_call(id_, last), _STREAM_S):
            if event := event_in(line):
                yield event

    # -- transport ---------------------------------------------------------------------------------------

    async def send(self, call: Call[T]) -> T:
        """Send one request, and read its response; raises AgentError or UnreachableError."""
        try:
            async with self._send(call, call.timeout_s) as response:
                body = await self._checked_body(response, call)
            return from_json(body, call.response)
        except msgspec.MsgspecError as error:
            raise AgentError(f"the agent's response to {call.path} cannot be read: {error}") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise unreachable(self.target, error) from error

    async def _lines(self, call: Call[Any], silent_s: float | None = None) -> AsyncIterator[bytes]:
        try:
            async with self._send(call, None if silent_s else call.timeout_s, silent_s) as response:
                if response.status >= 400:
                    await self._checked_body(response, call)
                async for line in response.content:
                    yield line
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise unreachable(self.target, error) from error

    @staticmethod
    async def _checked_body(response: aiohttp.ClientResponse, call: Call[Any]) -> bytes:
        body = await response.read()
        if response.status >= 400 and response.status not in call.statuses:
            raise refusal(response.status, body)
        return body

    def _send(
        self, call: Call[Any], total_s: float | None, silent_s: float | None = None
    ) -> Any:  # aiohttp's own context manager of a response
        if self._session is None:
            raise AgentError("use the agent as a context: async with AsyncAgent(url) as agent")
        return self._session.request(
            call.method,
            # Already encoded: yarl would decode a part of an id that looks harmless, and the agent would see another.
            URL(self.target.base + call.target, encoded=True),
            data=call.body,
            headers={**call.all_headers, **self.target.headers},
            timeout=aiohttp.ClientTimeout(total=total_s, sock_read=silent_s),
        )
