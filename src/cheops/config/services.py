"""The services of a site: the application's HTTP APIs that the gateway stands in front of."""

from dataclasses import dataclass

from cheops.config.address import Address, is_loopback, place_of, url_at
from cheops.config.keys import SERVICE
from cheops.config.names import named_at
from cheops.documents import Value


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """A service of this site, and where its own instance of it is."""

    name: str
    url: str


def services_at(value: Value, listen: Address, advertise: str) -> dict[str, ServiceConfig]:
    return {name: _service(name, at, listen, advertise) for name, at in named_at(value).items()}


def _service(name: str, value: Value, listen: Address, advertise: str) -> ServiceConfig:
    record = SERVICE.read(value)
    url = url_at(record["url"], with_path=True)
    if _is_the_agent(url, listen, advertise):
        raise record["url"].fail(f"{url} is this agent itself; give the address of the service")
    return ServiceConfig(name, url)


def _is_the_agent(url: str, listen: Address, advertise: str) -> bool:
    """Whether requests to the service would come back to the agent, for ever."""
    place = place_of(url)
    hears_loopback = listen.is_wildcard or is_loopback(listen.url)
    return place in (listen, place_of(advertise)) or (
        hears_loopback and is_loopback(url) and place.port == listen.port
    )
