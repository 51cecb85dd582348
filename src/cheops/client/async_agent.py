"""`AsyncAgent`: the client for programs with an event loop, over aiohttp."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec
from yarl import URL

from cheops.api.models import (
    Accepted,
    Changes,
    Checks,
    DryRun,
    Event,
    Explanation,
    LogView,
    OperationView,
    ResourceDetail,
    ResourceStatus,
    ResourceSummary,
    SiteAnswer,
    Sites,
    SubmitRequest,
    Verification,
    Wait,
    from_json,
)
from cheops.client import calls
from cheops.client.agent import event_in
from cheops.client.calls import Call
from cheops.client.target import DEFAULT_URL, AgentError, Target, refusal, short_path, unreachable

T = TypeVar("T")
_STREAM_S = 60.0


class AsyncAgent:
    """An agent at an address. What has no method of its own is asked with `ask(calls.…)`."""

    def __init__(self, url: str | Target = DEFAULT_URL, *, token: str = "", ca: str = "") -> None:
        """`token` is shown to it; `ca` is a file with the authority's certificate, where it is not public."""
        self.target = url if isinstance(url, Target) else Target(url.rstrip("/"), token, ca)
        self._session: aiohttp.ClientSession | None = None
        self._held = ExitStack()

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

    # -- questions ---------------------------------------------------------------------------------------

    async def resources(self, prefix: str = "") -> AsyncIterator[ResourceSummary]:
        """Those of all pages."""
        cursor: str | None = ""
        while cursor is not None:
            page = await self.ask(calls.resources(prefix, cursor, 100))
            for one in page.resources:
                yield one
            cursor = page.next

    async def resource(self, id_: str, *, fresh_s: float = 0.5) -> ResourceDetail:
        return await self.ask(calls.resource(id_, fresh_s))

    async def status(self, id_: str, *, fresh_s: float = 0.5) -> ResourceStatus:
        return await self.ask(calls.status(id_, fresh_s))

    async def explain(self, id_: str, *, fresh_s: float = 0.5) -> Explanation:
        return await self.ask(calls.explain(id_, fresh_s))

    async def log(self, id_: str, *, fresh_s: float = 0.5) -> LogView:
        return await self.ask(calls.log(id_, fresh_s))

    async def operation(self, id_: str, op: str) -> OperationView:
        return await self.ask(calls.operation(id_, op))

    async def verify(self, id_: str, command: str = "", timeout_s: float = 30.0) -> Verification:
        return await self.ask(calls.verify(id_, command, timeout_s))

    async def dry_run(self, id_: str, request: SubmitRequest) -> DryRun:
        return await self.ask(calls.dry_run(id_, request))

    async def sites(self) -> Sites:
        return await self.ask(calls.sites())

    async def check(self) -> Checks:
        return await self.ask(calls.check())

    async def submit(
        self, id_: str, request: SubmitRequest, *, wait: Wait = Wait.ALL, timeout_s: float = 30.0
    ) -> Accepted:
        return await self.ask(calls.submit(id_, request, wait, timeout_s))

    async def answers(
        self, id_: str, request: SubmitRequest, *, wait: Wait = Wait.ALL, timeout_s: float = 30.0
    ) -> AsyncIterator[SiteAnswer]:
        """Each site's answer as it comes; in the end one with PENDING for each that has not."""
        async for line in self._lines(calls.submit(id_, request, wait, timeout_s, accept=calls.LINES)):
            yield from_json(line, SiteAnswer)

    async def changes(
        self, id_: str | None = None, since: str = "", *, wait_s: float = 0.0, limit: int = 1000
    ) -> Changes:
        return await self.ask(calls.changes(id_, since, wait_s, limit))

    async def events(self, id_: str | None = None, last: str = "") -> AsyncIterator[Event]:
        """What happens, as it happens; ends when the agent is stopped, or with an error."""
        async for line in self._lines(calls.events(id_, last), _STREAM_S):
            if event := event_in(line):
                yield event

    # -- asking ------------------------------------------------------------------------------------------

    async def ask(self, call: Call[T]) -> T:
        """One question, and its answer."""
        try:
            async with self._send(call, call.timeout_s) as answer:
                body = await self._good(answer, call)
            return from_json(body, call.answer)
        except msgspec.MsgspecError as error:
            raise AgentError(f"the agent's answer to {call.path} cannot be read: {error}") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise unreachable(self.target, error) from error

    async def _lines(self, call: Call[Any], silent_s: float | None = None) -> AsyncIterator[bytes]:
        try:
            async with self._send(call, None if silent_s else call.timeout_s, silent_s) as answer:
                if answer.status >= 400:
                    await self._good(answer, call)
                async for line in answer.content:
                    yield line
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise unreachable(self.target, error) from error

    @staticmethod
    async def _good(answer: aiohttp.ClientResponse, call: Call[Any]) -> bytes:
        body = await answer.read()
        if answer.status >= 400 and answer.status not in call.also_good:
            raise refusal(answer.status, body)
        return body

    def _send(
        self, call: Call[Any], total_s: float | None, silent_s: float | None = None
    ) -> Any:  # aiohttp's own context manager of a response
        if self._session is None:
            raise AgentError("use the agent as a context: async with AsyncAgent(url) as agent")
        return self._session.request(
            call.method,
            URL(self.target.base + call.target, encoded=True),
            data=call.body,
            headers={**call.all_headers, **self.target.headers},
            timeout=aiohttp.ClientTimeout(total=total_s, sock_read=silent_s),
        )
