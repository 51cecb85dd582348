"""Rules about sessions: several requests that make one change, such as the parts of an upload and its end.

- {match: "POST /{bucket}/{key**}?uploads", opens: upload, id: "xml:UploadId"}
- {match: "PUT /{bucket}/{key**}?partNumber={n}&uploadId={upload}", uses: upload}
- {match: "POST /{bucket}/{key**}?uploadId={upload}", completes: upload, is: put, of: "/{bucket}/{key}"}
- {match: "DELETE /{bucket}/{key**}?uploadId={upload}", aborts: upload}

The service gives the session a handle, in its response to the request that opens it. In later requests the variable
with the name of the session stands for this handle.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cheops.text import listed, printable, shortened
from cheops.yaml_file import Value

_NAME = re.compile(r"[a-z][a-z_]{0,30}")
_HANDLE = re.compile(r"\$(\.[A-Za-z_][\w-]*){1,8}|header:[\w-]{1,100}|xml:[\w-]{1,100}")


class SessionRole(StrEnum):
    """What a request does to a session. Each is the key of a rule, whose value is the name of the session."""

    OPENS = "opens"
    USES = "uses"
    COMPLETES = "completes"
    ABORTS = "aborts"


@dataclass(frozen=True, slots=True)
class SessionStep:
    """The place of a request in a session."""

    role: SessionRole
    session: str  # its name, and that of the variable that stands for its handle
    id: str = ""  # where the response to the first request has the handle
    follows_location: bool = False  # the header `Location` of the response says where the next request goes
    without: frozenset[str] = frozenset()  # query members that the service does not get


OPTIONS = (*SessionRole, "next", "without")


def read_step(record: Mapping[str, Value], variables: Iterable[str]) -> SessionStep | None:
    """The place in a session that the keys of a rule state; None if they state none."""
    roles = [role for role in SessionRole if role in record]
    if not roles:
        for key in ("next", "without"):
            if key in record:
                raise record[key].fail("only a rule with 'opens' or 'uses' can have this")
        return None
    role, at = roles[0], record[roles[0]]
    if len(roles) > 1:
        raise record[roles[1]].fail(f"a request does one of these to a session: {listed(roles)}")
    name = at.string()
    if not _NAME.fullmatch(name):
        raise at.fail(f"expected the name of a session, such as upload, found '{printable(shortened(name))}'")
    is_first = role is SessionRole.OPENS
    if not is_first and name not in variables:
        raise at.fail(f"'match' must have the variable {{{name}}}, where the request has the session's handle")
    if is_first and "id" not in record:
        raise at.fail("'id' is missing: where the response has the handle, such as xml:UploadId or Location")
    if "next" in record and (role not in (SessionRole.OPENS, SessionRole.USES)):
        raise record["next"].fail("only a rule with 'opens' or 'uses' can have this")
    if "without" in record and not is_first:
        raise record["without"].fail("only a rule with 'opens' can have this")
    return SessionStep(
        role,
        name,
        _read_handle(record["id"]) if is_first else "",
        "next" in record and _follows_location(record["next"]),
        frozenset(one.string() for one in record["without"].items()) if "without" in record else frozenset(),
    )


def _read_handle(value: Value) -> str:
    text = value.string()
    if text.lower() == "location":
        return "header:Location"
    if not _HANDLE.fullmatch(text):
        shown = printable(shortened(text))
        raise value.fail(f"expected where the handle is: $.id, Location, header:NAME or xml:ELEMENT; found '{shown}'")
    return text


def _follows_location(value: Value) -> bool:
    if value.string().lower() != "location":
        raise value.fail("expected Location: the header that says where the next request of the session goes")
    return True
