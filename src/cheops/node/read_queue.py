"""Places for reads: how many clients may have the application read at the same time, and how long others wait.

A read runs a command or a request for as long as its type allows, and a role that only reads can ask for one. So reads
have places of their own: however many are slow, operations still run. Each client (a token, a site) has a share of the
places, so that one cannot take all; a place that becomes free goes to the waiting client that has the fewest. Nobody
waits without end: a request that gets no place in time is refused, and its client may try again.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cheops.errors import CheopsError

WAIT_S = 10.0  # shorter than the timeouts of usual clients, so that they read the reason
_MAX_WAITING_EACH = 100  # requests of one client; each keeps a connection and some memory


class BusyError(CheopsError):
    """There is no place for a read now."""

    definite = False
    headers = {"Retry-After": "1"}  # noqa: RUF012 - read only


class ReadQueue:
    """Belongs to one event loop."""

    def __init__(self, places: int, places_each: int, wait_s: float = WAIT_S) -> None:
        self._places = places
        self._places_each = min(places, places_each)
        self._wait_s = wait_s
        self._used: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by client, the first to come first

    @property
    def used(self) -> int:
        return self._used.total()

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """A place for one read. Raises BusyError if there is none in time."""
        await self._take(client)
        try:
            yield
        finally:
            self._used[client] -= 1
            self._hand_out()

    async def _take(self, client: str) -> None:
        queue = self._waiting.setdefault(client, deque())
        if len(queue) >= _MAX_WAITING_EACH:
            raise BusyError(
                f"{len(queue)} reads of {client} wait already: let some end first", status=429, reason="too many reads"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._hand_out()
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except TimeoutError:
            if not turn.cancelled():  # the place came in the same moment
                return
            self._leave(client, turn)
            raise BusyError(self._reason(client), status=503, reason="reads are busy") from None
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(client, turn)
            else:
                self._used[client] -= 1
                self._hand_out()
            raise

    def _leave(self, client: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(client, deque())
        if turn in queue:
            queue.remove(turn)
        if not queue:
            self._waiting.pop(client, None)

    def _reason(self, client: str) -> str:
        if self._used[client] >= self._places_each:
            held = f"{self._used[client]} reads of {client} are running, and one client may have {self._places_each}"
            return f"{held} at a time (clients.reads_each): let some end first, or try again"
        return f"all {self._places} places for reads are taken (clients.reads): try again"

    def _hand_out(self) -> None:
        """Give free places to those who wait."""
        while self.used < self._places:
            able = [client for client in self._waiting if self._used[client] < self._places_each]
            if not able:
                break
            client = min(able, key=self._used.__getitem__)  # of equal ones, the client that has waited longest
            queue = self._waiting.pop(client)
            queue.popleft().set_result(None)
            self._used[client] += 1
            if queue:
                self._waiting[client] = queue  # behind the other clients
        self._used += Counter()  # forget clients without a place: tokens come and go
