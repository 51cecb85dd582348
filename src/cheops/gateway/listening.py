"""The addresses of the gateway, opened before anything else happens: one that is taken is said at once."""

import logging
import resource
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cheops.config.address import Address
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.fast.choosing import chosen, end_left, left_running
from cheops.gateway.request import Entrance, Way

BACKLOG = 4096
_OTHER_FILES = 256  # what an agent has open beside the connections of its gateway
_log = logging.getLogger(__name__)


class ListenError(CheopsError):
    """The gateway cannot have an address."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Open sockets, and what is behind each."""

    sockets: dict[Entrance, socket.socket]
    program: str | None = None  # HAProxy, where it has the addresses for clients
    handed: tuple[Entrance, ...] = ()  # who comes by way of it

    @property
    def has_any(self) -> bool:
        return bool(self.sockets or self.handed)

    def close(self) -> None:
        for one in self.sockets.values():
            one.close()


def open_all(config: SiteConfig) -> Listening:
    """Sockets for all addresses of the gateway that are not HAProxy's. Raises ListenError, and then has none
    open."""
    program = chosen(config)
    if program is None:
        end_left(config)
    is_left = left_running(config) is not None
    opened, handed = Listening({}), []
    try:
        for key, entrance, address in _entrances(config):
            if program is None or not _is_handed(entrance, config):
                opened.sockets[entrance] = _bound(key, address, config)
                continue
            handed.append(entrance)
            if not is_left:
                _bound(key, address, config).close()  # it can be had
    except ListenError:
        opened.close()
        raise
    return Listening(opened.sockets, program, tuple(handed))


def open_handed(config: SiteConfig, handed: Collection[Entrance]) -> dict[Entrance, socket.socket]:
    """The addresses that HAProxy was to have, where it does not start."""
    found = [one for one in _entrances(config) if one[1] in handed]
    return {entrance: _bound(key, address, config) for key, entrance, address in found}


def _is_handed(entrance: Entrance, config: SiteConfig) -> bool:
    """Whether HAProxy has an address: those of services that clients reach through it, also for the
    application's own calls, and the one for gateways that show certificates."""
    match entrance.way:
        case Way.INBOUND:
            return True
        case Way.OUTBOUND:
            return config.services[entrance.service].front.listen is not None
        case Way.MESH:
            return config.security.is_on
        case Way.PROXY:
            return False


def most_connections(wanted: int) -> int:
    """How many clients can be served at once, each of which may need a connection to a service: as many as
    wanted, or as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or (possible := (hard - _OTHER_FILES) // 2) >= wanted:
        return wanted
    _log.warning(
        "gateway.connections: %s are wanted, and the limit of open files (%s) allows for %s",
        wanted,
        hard,
        possible,
    )
    return max(possible, 1)


def _entrances(config: SiteConfig) -> Iterable[tuple[str, Entrance, Address]]:
    for service in config.services.values():
        if service.front.listen:
            yield f"services.{service.name}.listen", Entrance(Way.INBOUND, service.name), service.front.listen
        if service.front.outbound:
            key = f"services.{service.name}.outbound"
            yield key, Entrance(Way.OUTBOUND, service.name), service.front.outbound
    if config.gateway.listen:
        yield "gateway.listen", Entrance(Way.MESH), config.gateway.listen
    if config.gateway.proxy:
        yield "gateway.proxy", Entrance(Way.PROXY), config.gateway.proxy


def _bound(key: str, address: Address, config: SiteConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address.host, address.port))
        one.listen(BACKLOG)
        one.setblocking(False)
    except OSError as error:
        one.close()
        raise ListenError(
            f"the gateway cannot listen on {address}: {error.strerror}. '{key}' in {config.source} says so"
        ) from error
    return one
