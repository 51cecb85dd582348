"""Where the agents of the demo ask for a cut: a Unix socket, by which whoever uses their pages has sites cut
off and joined again. A line of JSON comes in, {"do": "cut", "site": "site3"}, and one goes out.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from cheops.api import local_socket
from cheops.demo.wires import WireError, Wires

_MOST_BYTES = 65_536
_BACKLOG = 16
_PATIENCE_S = 5.0


class WireDesk:
    """Serves within the loop of the wires, until they are closed."""

    def __init__(self, wires: Wires, path: Path) -> None:
        self._wires = wires
        wires.wait(self._open(path))

    async def _open(self, path: Path) -> None:
        listening = local_socket.listen(path, _BACKLOG)
        self._server = await asyncio.start_unix_server(self._answer, sock=listening, limit=_MOST_BYTES)

    def close(self) -> None:
        self._wires.wait(self._close())

    async def _close(self) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                told = await self._told(await reader.readline())
                writer.write(json.dumps(told).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # whoever asked has left, or said nothing that could be answered
        finally:
            writer.close()

    async def _told(self, line: bytes) -> dict[str, Any]:
        wish = json.loads(line)
        try:
            match wish.get("do"):
                case "cut":
                    await self._wires.sever(str(wish.get("site")))
                case "join":
                    self._wires.join(str(wish.get("site")))
                case "look":
                    pass
                case other:
                    return {"problem": f"nobody knows how to '{other}'"}
        except WireError as error:
            return {"problem": str(error)}
        return {"cut": sorted(sorted(pair) for pair in self._wires.severed)}
