"""`python -m bench.gateway_service PORT`: a service that responds at once, so that only the way to it is measured."""

import asyncio
import sys
from typing import cast

import uvloop

BODY = b"x" * 1_000
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


class _Service(asyncio.Protocol):
    """One response for each end of headers: the requests have no bodies."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._tail = b""

    def data_received(self, data: bytes) -> None:
        data = self._tail + data
        if count := data.count(b"\r\n\r\n"):
            self._transport.write(RESPONSE * count)
            data = data.rpartition(b"\r\n\r\n")[2]
        self._tail = data


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Service, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
