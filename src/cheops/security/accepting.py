"""Accepting connections with TLS. Those that have not yet said hello have a limit too, in all and of one
address: else somebody who opens connections and says nothing would use up the files of the process, long
before anybody counts them as clients.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from cheops.errors import CheopsError

TOO_MANY, TOO_MANY_OF_ONE = "too many connections", "too many connections of one address"
_AT_A_TIME = 64  # accepted before others have their turn
_PAUSE_S = 0.2  # when the system has no more files for us
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Manners:
    """What is expected of whoever connects."""

    context: ssl.SSLContext
    handshake_s: float
    most: int  # that shake hands at a time
    most_each: int  # of one address
    refused: Callable[[str, str], None]  # why, and from which address


class Accepting:
    """Belongs to one event loop, and has what uvicorn and asyncio ask of a server: `close`."""

    def __init__(
        self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol], manners: Manners
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._protocol = protocol
        self._manners = manners
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_address: Counter[str] = Counter()
        self._is_closed = False
        listening.setblocking(False)
        self._listen()

    @property
    def handshakes(self) -> int:
        """Under way."""
        return len(self._tasks)

    def close(self) -> None:
        """Take no more; the socket is closed, and whoever has not come in yet is not let in."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_A_TIME):
            try:
                one, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(error)
                return
            self._take(one, str(address[0]))

    def _cannot_accept(self, error: OSError) -> None:
        """There are no more files to be had: it is tried again, and not a hundred thousand times a second."""
        if error.errno not in _NO_ROOM:
            _log.error("no connection can be accepted: %s", error)
        else:
            _log.warning("no more connections can be accepted for now: %s", error.strerror)
        self._loop.remove_reader(self._listening)
        self._loop.call_later(_PAUSE_S, self._listen)

    def _take(self, one: socket.socket, address: str) -> None:
        reason = ""
        if len(self._tasks) >= self._manners.most:
            reason = TOO_MANY
        elif self._by_address[address] >= self._manners.most_each:
            reason = TOO_MANY_OF_ONE
        if reason:
            one.close()  # without a word: there is no way yet to say one
            self._manners.refused(reason, address)
            return
        one.setblocking(False)
        self._by_address[address] += 1
        task = self._loop.create_task(self._greet(one))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._greeted(done, address))

    async def _greet(self, one: socket.socket) -> None:
        """A handshake that fails is counted by the context, which knows why (tls.py)."""
        try:
            with contextlib.suppress(OSError, TimeoutError, CheopsError):  # ssl.SSLError is an OSError
                await self._loop.connect_accepted_socket(
                    self._protocol,
                    one,
                    ssl=self._manners.context,
                    ssl_handshake_timeout=self._manners.handshake_s,
                )
        except BaseException:
            one.close()
            raise

    def _greeted(self, task: asyncio.Task[None], address: str) -> None:
        self._tasks.discard(task)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        if not task.cancelled() and (error := task.exception()):
            _log.error("a connection could not be taken", exc_info=error)
