"""One request to an agent, answered as a whole or line by line. Only the standard library: it starts fast."""

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlsplit

from cheops.client.multipart import Form
from cheops.errors import CheopsError, Fault

DEFAULT_URL = "http://127.0.0.1:8079"
_CONNECT_S = 10.0


class AgentError(CheopsError):
    """The agent refuses, in its own words."""

    fault = Fault.CLIENT


class UnreachableError(CheopsError):
    """The agent cannot be reached, or its answer was cut off."""

    fault = Fault.PEER
    definite = False


def agent_url(given: str | None = None) -> str:
    """Where the agent is: as given, else by CHEOPS_URL, else at its usual address on this machine."""
    url = (given or os.environ.get("CHEOPS_URL") or DEFAULT_URL).rstrip("/")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise AgentError(f"'{url}' is not the address of an agent, such as {DEFAULT_URL}")
    return url


class Agent:
    """An agent at an address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def exec_lines(self, id_: str, form: Form, timeout_s: float) -> Iterator[dict[str, Any]]:
        """What sites answer to an operation, as it comes."""
        with closing(self._connection(timeout_s + _CONNECT_S)) as connection:
            for line in self._post(connection, f"/exec/{quote(id_, safe='')}", form):
                yield json.loads(line)

    def show(self, id_: str, form: Form, timeout_s: float) -> dict[str, Any]:
        with closing(self._connection(timeout_s + _CONNECT_S)) as connection:
            answer: dict[str, Any] = json.loads(
                b"".join(self._post(connection, f"/show/{quote(id_, safe='')}", form))
            )
            return answer

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=timeout_s)

    def _post(self, connection: http.client.HTTPConnection, path: str, form: Form) -> Iterator[bytes]:
        headers = {"Content-Type": form.content_type, "Content-Length": str(form.length)}
        try:
            connection.request("POST", urlsplit(self.url).path + path, iter(form), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise AgentError(_reason(answer.status, answer.read()))
            while line := answer.readline():
                yield line
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(
                f"no answer from the agent at {self.url}: {error or type(error).__name__}\n"
                "  Is it running ('cheops agent')? CHEOPS_URL or --url says where it is."
            ) from error


def _reason(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the agent answered {status}: {body[:300].decode('utf-8', 'replace')}"
