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
    """A token, without its secret, which only its holder knows."""

    id: Annotated[str, doc("What it is called where names may change.", "6f1c9a02")]
    name: Annotated[str, doc("Whose it is, or what for.", "ci")]
    role: Annotated[Role, doc("viewer, operator or admin.", "operator")]
    types: Annotated[tuple[str, ...] | None, doc("The types it is limited to; null: no limit.", ["counter"])]
    services: Annotated[tuple[str, ...] | None, doc("The services it is limited to.", None)]
    sites: Annotated[tuple[str, ...] | None, doc("The sites it is limited to.", None)]
    made_at: Annotated[str, doc("When it was made.", "2026-11-16T01:41:31.885Z")]
    made_by: Annotated[str, doc("By whom.", "local:uid 0")]
    ends_at: Annotated[str | None, doc("Until when it is good; null: for ever.", "2027-02-14T01:41:31.885Z")]
    good: Annotated[bool, doc("Whether it is good now.", True)]


class TokenList(Struct, frozen=True, kw_only=True):
    """The tokens of this site."""

    tokens: Annotated[tuple[TokenView, ...], doc("The oldest first.")]


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to be made. What it is limited to is all that it reaches: `types` and `services` are one list,
    and what it changes must be at none but its `sites`."""

    name: Annotated[str, doc("Whose it is, or what for; no two have the same.", "ci", min_length=1, max_length=100)]
    role: Annotated[Role, doc("viewer reads, operator changes resources, admin does all.", "operator")]
    types: Annotated[_Names | None, doc("Only resources of these types.", ["counter"])] = None
    services: Annotated[_Names | None, doc("Only resources of these services.", ["image"])] = None
    sites: Annotated[_Names | None, doc("Only what is at these sites.", ["site1"])] = None
    lasts_s: Annotated[
        Annotated[float, Meta(gt=0, le=3.2e9)] | None,
        doc("For how long it is good, in seconds; null: for ever.", 7776000.0),
    ] = 90 * 86_400.0


class MadeToken(Struct, frozen=True, kw_only=True):
    """A token that was made. Its secret is told this once."""

    token: Annotated[TokenView, doc("What it is.")]
    secret: Annotated[str, doc("To be shown as `Authorization: Bearer …`.", "cheops_mJ8…")]


class SignIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a browser signs in with."""

    token: Annotated[str, doc("A token of this site.", "cheops_mJ8…", max_length=200)]


class Session(Struct, frozen=True, kw_only=True):
    """Who asks."""

    kind: Annotated[str, doc("How it is known: local, token or open.", "token")]
    name: Annotated[str, doc("The name of the token, or the user.", "ci")]
    role: Annotated[Role | None, doc("What it may.", "operator")]
    types: Annotated[tuple[str, ...] | None, doc("The types it is limited to; null: no limit.", None)]
    services: Annotated[tuple[str, ...] | None, doc("The services it is limited to.", None)]
    sites: Annotated[tuple[str, ...] | None, doc("The sites it is limited to.", None)]


class AuditLog(Struct, frozen=True, kw_only=True):
    """Lines of the audit log."""

    entries: Annotated[tuple[AuditEntry, ...], doc("The newest last.")]
    broken: Annotated[tuple[str, ...], doc("Where lines were changed or are missing.", [])]
    trouble: Annotated[str | None, doc("Why nothing can be written now.", None)]


class Health(Struct, frozen=True, kw_only=True):
    """Whether the agent works (`/healthz`) or takes operations (`/readyz`)."""

    ok: Annotated[bool, doc("The answer.", True)]
    site: Annotated[str, doc("Who answers.", "site1")]
    version: Annotated[str, doc("The version of the agent.", "0.1.0")]
    detail: Annotated[str, doc("Why not, if not.", "")]


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but perhaps not as it is meant
    FAILED = "failed"


CHECK_GROUPS = ("configuration", "store", "clocks", "security", "peers", "services", "backends", "versions")


class Check(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    group: Annotated[str, doc(f"{', '.join(CHECK_GROUPS[:-1])} or {CHECK_GROUPS[-1]}.", "peers")]
    name: Annotated[str, doc("What.", "site2 answers")]
    level: Annotated[Level, doc("How it is.", "ok")]
    ok: Annotated[bool, doc("Whether it works: ok or a warning.", True)]
    detail: Annotated[str, doc("What was found.", "12.5 ms away")]
    hint: Annotated[str, doc("What to do about it, if it is not.", "")]
    anchor: Annotated[str, doc("Where the documentation speaks of it.", "docs/troubleshooting.md#peers")]


class Checks(Struct, frozen=True, kw_only=True):
    """Everything that was looked at, in groups."""

    site: Annotated[str, doc("Who looked.", "site1")]
    ok: Annotated[bool, doc("Whether all is as it should be.", True)]
    checks: Annotated[tuple[Check, ...], doc("Group by group.")]


class Problem(Struct, frozen=True, kw_only=True):
    """What is wrong (RFC 9457)."""

    type: Annotated[str, doc("about:blank: the status says which kind.", "about:blank")]
    title: Annotated[str, doc("The status in words.", "Not Found")]
    status: Annotated[int, doc("The status of the answer.", 404)]
    detail: Annotated[str, doc("What is wrong, where, and what to do.", "no such resource is known here")]
    fault: Annotated[str | None, doc("Whose: client, application, peer or us.", "client")] = None
    definite: Annotated[bool | None, doc("false: asking again may help.", True)] = None


class Changes(Struct, frozen=True, kw_only=True):
    """What happened after a place in the feed, and from where to go on."""

    events: Annotated[tuple[Event, ...], doc("In their order.")]
    last: Annotated[str, doc("`since` of the next question.", "6f1c9a-118")]
    reset: Annotated[bool, doc("Some that were asked for are gone: look at the state anew.", False)]
