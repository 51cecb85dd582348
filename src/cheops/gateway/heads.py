"""Heads of requests as they come in over one connection: all up to an empty line, whatever that says."""

import asyncio

from cheops.config.gateway import GatewayConfig
from cheops.gateway.errors import GatewayRequestError
from cheops.gateway.strictness import refuse_early
from cheops.gateway.wire import Wire

_END = b"\r\n\r\n"


class Heads:
    """`beyond` is what came in after the head that was read last, and is no part of it."""

    __slots__ = ("_settings", "_wire", "beyond", "has_begun")

    def __init__(self, wire: Wire, settings: GatewayConfig) -> None:
        self._wire = wire
        self._settings = settings
        self.beyond = b""
        self.has_begun = False  # a part of the next head is here

    async def next(self) -> bytes | None:
        """The next head; None where the client has no more, or keeps silent for too long."""
        data, self.beyond = self.beyond, b""
        loop, most = asyncio.get_running_loop(), self._settings.head_size_bytes
        end_s = loop.time() + self._settings.head_timeout_s if data else None
        while True:
            data = data.lstrip(b"\r\n") if data[:1] in (b"\r", b"\n") else data
            self.has_begun = bool(data)
            place = data.find(_END)
            if 0 <= place < most:
                self.beyond = data[place + 4 :]
                return data[: place + 4]
            refuse_early(data, most)
            wait_s = self._settings.keep_alive_s if end_s is None else max(end_s - loop.time(), 0.0)
            try:
                more = await self._wire.read(wait_s)
            except TimeoutError:
                if end_s is None:
                    return None
                raise GatewayRequestError("the head of the request did not come in time", 408) from None
            if not more:
                return None
            end_s = end_s or loop.time() + self._settings.head_timeout_s
            data += more
