"""What an agent of the demo answers, asked without the command line that is on show."""

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from typing import Any

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def log_of(url: str, id_: str) -> list[dict[str, Any]]:
    """The operations of a resource, as the API's log has them."""
    return list(_get(url, f"/api/v1/resources/{id_}/log")["operations"])


def sees_all_up(url: str) -> bool:
    """Whether an agent has heard of all sites that it knows of."""
    return all(site["state"] == "up" for site in _get(url, "/api/v1/sites")["sites"])


def http_answer(
    url: str, method: str, path: str, headers: Mapping[str, str] | None = None, body: str | None = None
) -> HttpAnswer:
    """What a service answers, whoever stands before it. Raises OSError."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_TIMEOUT_S)
    with closing(connection):
        connection.request(method, path, None if body is None else body.encode(), dict(headers or {}))
        answer = connection.getresponse()
        return HttpAnswer(answer.status, answer.headers, answer.read())


def _get(url: str, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = http_answer(url, "GET", path).json
    return answer
