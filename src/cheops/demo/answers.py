"""What an agent of the demo answers, asked without the command line that is on show."""

import http.client
import json
from contextlib import closing
from typing import Any

_TIMEOUT_S = 30.0


def log_of(url: str, id_: str) -> list[dict[str, Any]]:
    """The operations of a resource, as the API's log has them."""
    return list(_get(url, f"/api/v1/resources/{id_}/log")["operations"])


def sees_all_up(url: str) -> bool:
    """Whether an agent has heard of all sites that it knows of."""
    return all(site["state"] == "up" for site in _get(url, "/api/v1/sites")["sites"])


def _get(url: str, path: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_TIMEOUT_S)
    with closing(connection):
        connection.request("GET", path)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    return answer
