"""Models of the agent itself: access, audit, health, checks, problems and events."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from cheops.notify.event import Event
from cheops.schema import doc
from cheops.security.audit_entries import AuditEntry
from cheops.security.principal import Role

_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Names = Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=100)]


class TokenView(Struct, frozen=True, kw_only=True):
    """A token, without its secret."""

    id: Annotated[str, doc("Its id, which never changes.", "6f1c9a02")]
    name: Annotated[str, doc("Its name: who or what uses it.", "ci")]
    role: Annotated[Role, doc("viewer, operator or admin.", "operator")]
    types: Annotated[tuple[str, ...] | None, doc("The types it is limited to; null: not limited.", ["counter"])]
    services: Annotated[tuple[str, ...] | None, doc("The services it is limited to; null: not limited.", None)]
    sites: Annotated[tuple[str, ...] | None, doc("The sites it is limited to; null: not limited.", None)]
    made_at: Annotated[str, doc("When it was created.", "2026-11-16T01:41:31.885Z")]
    made_by: Annotated[str, doc("Who created it.", "local:uid 0")]
    ends_at: Annotated[str | None, doc("When it expires; null: never.", "2027-02-14T01:41:31.885Z")]
    good: Annotated[bool, doc("Whether it is valid now.", True)]


class TokenList(Struct, frozen=True, kw_only=True):
    """The tokens of this site."""

    tokens: Annotated[tuple[TokenView, ...], doc("The tokens, the oldest first.")]


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to create. `types` and `services` are one list: a resource must match one of them. With `sites`, the token can
    change only resources that are at no other site."""

    name: Annotated[
        str, doc("Its name: who or what uses it. No two tokens have the same name.", "ci", min_length=1, max_length=100)
    ]
    role: Annotated[Role, doc("viewer reads, operator changes resources, admin does everything.", "operator")]
    types: Annotated[_Names | None, doc("Only resources of these types.", ["counter"])] = None
    services: Annotated[_Names | None, doc("Only resources of these services.", ["image"])] = None
    sites: Annotated[_Names | None, doc("Only resources at these sites.", ["site1"])] = None
    lasts_s: Annotated[
        Annotated[float, Meta(gt=0, le=3.2e9)] | None,
        doc("How long it is valid, in seconds; null: without end.", 7776000.0),
    ] = 90 * 86_400.0


class MadeToken(Struct, frozen=True, kw_only=True):
    """A new token. No other response has its secret."""

    token: Annotated[TokenView, doc("The token.")]
    secret: Annotated[str, doc("The secret, to be sent as `Authorization: Bearer …`.", "cheops_mJ8…")]


class SignIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The credentials of a browser."""

    token: Annotated[str, doc("A token of this site.", "cheops_mJ8…", max_length=200)]


class Session(Struct, frozen=True, kw_only=True):
    """The authenticated client, and its rights."""

    kind: Annotated[str, doc("How the client is authenticated: local, token or open.", "token")]
    name: Annotated[str, doc("The name of the token or of the user.", "ci")]
    role: Annotated[Role | None, doc("Its role.", "operator")]
    types: Annotated[tuple[str, ...] | None, doc("The types it is limited to; null: not limited.", None)]
    services: Annotated[tuple[str, ...] | None, doc("The services it is limited to; null: not limited.", None)]
    sites: Annotated[tuple[str, ...] | None, doc("The sites it is limited to; null: not limited.", None)]


class AuditLog(Struct, frozen=True, kw_only=True):
    """Lines of the audit log."""

    entries: Annotated[tuple[AuditEntry, ...], doc("The entries, the newest last.")]
    broken: Annotated[tuple[str, ...], doc("Where lines were changed or are missing.", [])]
    trouble: Annotated[str | None, doc("Why the log cannot be written now; null: it can.", None)]


class Health(Struct, frozen=True, kw_only=True):
    """Whether the agent works (`/healthz`) or accepts operations (`/readyz`)."""

    ok: Annotated[bool, doc("The result.", True)]
    site: Annotated[str, doc("The site; empty for a client without credentials.", "site1")]
    version: Annotated[str, doc("The version of the agent; empty for a client without credentials.", "0.1.0")]
    detail: Annotated[str, doc("The reason, if the result is false.", "")]


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but perhaps not as intended
    FAILED = "failed"


CHECK_GROUPS = ("configuration", "store", "clocks", "security", "peers", "services", "backends", "versions")


class Check(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    group: Annotated[str, doc(f"{', '.join(CHECK_GROUPS[:-1])} or {CHECK_GROUPS[-1]}.", "peers")]
    name: Annotated[str, doc("What it checks.", "site2 answers")]
    level: Annotated[Level, doc("The result.", "ok")]
    ok: Annotated[bool, doc("Whether it works: the level is ok or warning.", True)]
    detail: Annotated[str, doc("What it found.", "12.5 ms away")]
    hint: Annotated[str, doc("What to do about it; empty if there is nothing to do.", "")]
    anchor: Annotated[str, doc("Where the documentation explains it.", "docs/troubleshooting.md#peers")]


class Checks(Struct, frozen=True, kw_only=True):
    """The results of all checks, in groups."""

    site: Annotated[str, doc("The site.", "site1")]
    ok: Annotated[bool, doc("Whether no check failed.", True)]
    checks: Annotated[tuple[Check, ...], doc("The checks, group by group.")]


class Problem(Struct, frozen=True, kw_only=True):
    """A problem document (RFC 9457)."""

    type: Annotated[str, doc("about:blank: the status is the kind.", "about:blank")]
    title: Annotated[str, doc("The status in words.", "Not Found")]
    status: Annotated[int, doc("The status of the response.", 404)]
    detail: Annotated[str, doc("What is wrong, where, and what to do.", "no such resource is known here")]
    fault: Annotated[str | None, doc("Who can fix it: client, application, peer or us (Cheops).", "client")] = None
    definite: Annotated[bool | None, doc("false: the same request may succeed later.", True)] = None


class Changes(Struct, frozen=True, kw_only=True):
    """The events after a position in the feed, and the position to continue from."""

    events: Annotated[tuple[Event, ...], doc("The events, in order.")]
    last: Annotated[str, doc("`since` for the next request.", "6f1c9a-118")]
    reset: Annotated[bool, doc("Some events after the position are gone: read the state again.", False)]
