"""One operation to be run against a service, and how that ended."""

from dataclasses import dataclass
from pathlib import Path

from cheops.backends.http_answer import Said, result_of, written
from cheops.backends.http_request import Request
from cheops.backends.http_sending import Answered
from cheops.config.services import ServiceConfig
from cheops.engine.events import Result


@dataclass(frozen=True, slots=True)
class Task:
    """An operation, with all that is needed to run it."""

    service: ServiceConfig
    meta_id: str
    request: Request
    body: bytes | Path = b""


@dataclass(frozen=True, slots=True)
class Ended:
    """For the engine: the text is an answer in short (`Said`), or says why there is none."""

    result: Result
    text: str


def done(note: str) -> Ended:
    """There was nothing to be asked of the service."""
    return Ended(Result.OK, written(Said(status=200, note=note)))


def result_for(request: Request, method: str, answered: Answered) -> Result:
    status, own = answered.reply.status, answered.own_credentials
    return result_of(method, status, may_repeat=bool(request.key), own_credentials=own)
