"""Where an agent is, and what can go wrong on the way to it."""

import json
import os
from urllib.parse import urlsplit

from cheops.errors import CheopsError, Fault

DEFAULT_URL = "http://127.0.0.1:8079"


class AgentError(CheopsError):
    """The agent refuses, in its own words. `http_status` is its answer's, 0 if it was not even asked."""

    fault = Fault.CLIENT

    def __init__(self, message: str, http_status: int = 0) -> None:
        super().__init__(message)
        self.http_status = http_status


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


def refusal(status: int, body: bytes) -> AgentError:
    """What an answer of 400 or above says."""
    try:
        return AgentError(str(json.loads(body)["detail"]), status)
    except (ValueError, KeyError, TypeError):
        said = body[:300].decode("utf-8", "replace")
        return AgentError(f"the agent answered {status}: {said}", status)


def unreachable(url: str, error: BaseException) -> UnreachableError:
    return UnreachableError(
        f"no answer from the agent at {url}: {error or type(error).__name__}\n"
        "  Is it running ('cheops agent')? CHEOPS_URL or --url says where it is."
    )
