"""Requests to an agent, built from the declarations of its endpoints: `Agent` and `AsyncAgent` send the same ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from cheops.api.endpoints import BASE, Endpoint
from cheops.api.endpoints.declaration import JSON, parameters_of
from cheops.api.models import plain, to_json

T = TypeVar("T")
P = TypeVar("P", bound=msgspec.Struct)
B = TypeVar("B")
RESPONSE_TIMEOUT_S = 30.0  # how long a response may take if the request does not ask the agent to wait


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and the model of its response."""

    method: str
    path: str
    response: type[T]
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    accept: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = RESPONSE_TIMEOUT_S
    statuses: tuple[int, ...] = ()  # statuses of 400 and above that have the same response

    @property
    def target(self) -> str:
        """The path with its query, below the address of an agent."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def all_headers(self) -> dict[str, str]:
        content = {"Content-Type": JSON} if self.body is not None else {}
        return {"Accept": self.accept, **content, **self.headers}


def call_of(
    endpoint: Endpoint[T, P, B],
    *names: str,
    parameters: P | None = None,
    body: B | None = None,
    timeout_s: float = RESPONSE_TIMEOUT_S,
) -> Call[T]:
    """The request to an endpoint. `names` fill the parameters of its path, in order."""
    query, headers = _encoded(parameters) if parameters is not None else ({}, {})
    return Call(
        endpoint.method,
        f"{BASE}{_filled(endpoint.path, names)}",
        endpoint.response,
        query,
        None if body is None else to_json(body),
        accept=endpoint.media_type,
        headers=headers,
        timeout_s=timeout_s,
        statuses=tuple(status for status in endpoint.statuses if status >= 400),
    )


def _filled(path: str, names: tuple[str, ...]) -> str:
    parts = path.split("/")
    given = iter(names)
    filled = "/".join(segment(next(given)) if part.startswith("{") else part for part in parts)
    if rest := list(given):
        raise TypeError(f"{path} has no parameters for {rest}")
    return filled


def segment(name: str) -> str:
    """A name as one segment of a path, whatever it contains. Proxies remove segments that are only dots."""
    return quote(name, safe="").replace(".", "%2E") if set(name) == {"."} else quote(name, safe="")


def _encoded(parameters: msgspec.Struct) -> tuple[dict[str, str], dict[str, str]]:
    """Query and headers. Defaults are left out: agent and client have the same ones."""
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    for one in parameters_of(type(parameters)):
        value = getattr(parameters, one.field)
        if value != one.default:
            (headers if one.is_header else query)[one.name] = _text(plain(value))
    return query, headers


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
