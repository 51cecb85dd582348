"""What the audit log and the counters of refusals record of a request.

All changes and all refusals are recorded. Of their content only names are: a resource, a type, an operation.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from cheops.node.node import Node
from cheops.security.audit_entries import AuditEntry
from cheops.security.principal import NOBODY, Principal
from cheops.security.refusals import REFUSED_STATUSES
from cheops.text import printable, shortened

_OPERATION = b"cheops-operation"
_MOST = 256  # characters of anything that came from outside


@dataclass(slots=True)
class AuditRecord:
    """What is known of one request so far. The guard creates it; the route and the handler add what they learn."""

    method: str
    source: str
    who: Principal = NOBODY
    route: str = ""  # the template of the path, as in the table of rights
    writes: bool = False
    resource: str = ""
    operation: str = ""
    reason: str = ""  # why it is refused: a fixed text for each kind of refusal
    is_counted: bool = False  # the code that refused it has counted the refusal already
    is_noted: bool = False


def record_outcome(node: Node, act: AuditRecord, status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Record how a request ended, once."""
    if act.is_noted:
        return
    act.is_noted = True
    if status in REFUSED_STATUSES:
        if not act.is_counted:
            who = str(act.who) if act.who.name else act.source
            node.refusals.count(act.reason or f"status {status}", who)
        node.audit.refused(_entry(node, act, status, "refused"))
    elif act.writes:
        act.operation = _operation(headers)
        outcome = "done" if status < 400 else "failed" if status >= 500 else "refused"
        node.audit.note(_entry(node, act, status, outcome))


def _entry(node: Node, act: AuditRecord, status: int, outcome: str) -> AuditEntry:
    replica = node.pump.site.replicas.get(act.resource) if act.resource else None
    return AuditEntry(
        at=node.audit.now(),
        who=_short(str(act.who)),
        source=act.source,
        what=f"{act.method} {act.route or 'unknown path'}",
        resource=_short(act.resource),
        type=replica.type.name if replica else "",
        operation=act.operation,
        outcome=outcome,
        status=status,
        reason=act.reason,
    )


def _operation(headers: Iterable[tuple[bytes, bytes]]) -> str:
    return next((_short(unquote(value.decode("latin-1"))) for name, value in headers if name == _OPERATION), "")


def _short(text: str) -> str:
    is_plain = len(text) <= _MOST and text.isascii() and text.isprintable()
    return text if is_plain else printable(shortened(text, _MOST))
