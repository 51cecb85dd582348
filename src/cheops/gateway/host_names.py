"""The addresses behind the host names of other sites, for HAProxy, which looks up a name only when it starts.

A name keeps the address that it had as long as a lookup still gives it: a name with several addresses must not cause a
reload with each lookup. If a lookup fails, the last address stays: HAProxy hands over to the agent what it cannot send.
"""

import asyncio
import socket
from ipaddress import ip_address

from cheops.bounded import BoundedMap

_EVERY_S = 2.0
_MOST = 1_024


class HostNames:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._addresses: BoundedMap[str, str] = BoundedMap(_MOST)  # by name; empty if it is not known yet

    def address_of(self, host: str) -> str:
        """The address of a host; the name itself while it is not known."""
        if _is_address(host):
            return host
        if host not in self._addresses:
            self._addresses[host] = ""
        return self._addresses[host] or host

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for host in [name for name, _ in self._addresses.items()]:
                await self._look_up(host)
            await asyncio.sleep(_EVERY_S)

    async def _look_up(self, host: str) -> None:
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        found = [str(info[4][0]) for info in infos]
        if found and self._addresses.get(host) not in found:
            self._addresses[host] = found[0]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
