"""What operations of the HTTP backend send, and what services answer, as texts for people. The log has both as JSON."""

from cheops.backends.http.explanation import request_text, response_text
from cheops.config.services import service_of
from cheops.engine.replica import Replica
from cheops.log.operation import Operation


def command_text(replica: Replica, op: Operation) -> str:
    """`PUT /images/5`, or the command."""
    return op.payload.line if service_of(replica.type.name) is None else request_text(op.payload)


def detail_text(replica: Replica, detail: str) -> str:
    """`the service answers 404: …`, or the text of the reply as it is."""
    return detail if service_of(replica.type.name) is None else response_text(detail)
