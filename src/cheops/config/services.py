"""The services of a site: the application's HTTP APIs that the gateway stands in front of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cheops.config.address import Address, is_loopback, place_of, url_at
from cheops.config.gateway import Front, front_at
from cheops.config.keys import SERVICE
from cheops.config.names import named_at
from cheops.config.replication import ReplicationConfig, replication_at
from cheops.documents import Value


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """A service of this site, and where its own instance of it is."""

    name: str
    url: str
    front: Front = field(default_factory=Front)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)

    @property
    def hosts(self) -> tuple[str, ...]:
        """What the application calls it, where it goes through the gateway's proxy."""
        return self.front.hosts or (self.name.lower(),)


def services_at(value: Value, listen: Address, advertise: str, folder: Path) -> dict[str, ServiceConfig]:
    return {name: _service(name, at, listen, advertise, folder) for name, at in named_at(value).items()}


def _service(name: str, value: Value, listen: Address, advertise: str, folder: Path) -> ServiceConfig:
    record = SERVICE.read(value)
    url = url_at(record["url"], with_path=True)
    if _is_the_agent(url, listen, advertise):
        raise record["url"].fail(f"{url} is this agent itself; give the address of the service")
    return ServiceConfig(name, url, front_at(record, advertise), replication_at(record, folder))


def _is_the_agent(url: str, listen: Address, advertise: str) -> bool:
    """Whether requests to the service would come back to the agent, for ever."""
    place = place_of(url)
    hears_loopback = listen.is_wildcard or is_loopback(listen.url)
    return place in (listen, place_of(advertise)) or (
        hears_loopback and is_loopback(url) and place.port == listen.port
    )


def wrong_with(services: Mapping[str, ServiceConfig], listeners: Iterable[tuple[str, Address]]) -> str | None:
    """What no service by itself can show: requests that would come back for ever, and names for two."""
    for key, address in listeners:
        for service in services.values():
            if _is_the_agent(service.url, address, address.url):
                return f"services.{service.name}.url: {service.url} is '{key}' of this gateway itself"
    named: dict[str, str] = {}
    for service in services.values():
        for host in service.hosts:
            if named.setdefault(host, service.name) != service.name:
                return f"'{host}' stands for both {named[host]} and {service.name}; see 'hosts'"
    return None
