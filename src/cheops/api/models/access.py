"""Who may ask at a site, and who did what there."""

from typing import Annotated

from msgspec import Meta, Struct

from cheops.api.models.says import says
from cheops.security.principal import Role

_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Names = Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=100)]


class TokenView(Struct, frozen=True, kw_only=True):
    """A token, without its secret, which only its holder knows."""

    id: Annotated[str, says("What it is called where names may change.", "6f1c9a02")]
    name: Annotated[str, says("Whose it is, or what for.", "ci")]
    role: Annotated[Role, says("viewer, operator or admin.", "operator")]
    types: Annotated[tuple[str, ...] | None, says("The types it is limited to; null: no limit.", ["counter"])]
    services: Annotated[tuple[str, ...] | None, says("The services it is limited to.", None)]
    sites: Annotated[tuple[str, ...] | None, says("The sites it is limited to.", None)]
    made_at: Annotated[str, says("When it was made.", "2026-11-16T01:41:31.885Z")]
    made_by: Annotated[str, says("By whom.", "local:uid 0")]
    ends_at: Annotated[str | None, says("Until when it is good; null: for ever.", "2027-02-14T01:41:31.885Z")]
    good: Annotated[bool, says("Whether it is good now.", True)]


class TokenList(Struct, frozen=True, kw_only=True):
    """The tokens of this site."""

    tokens: Annotated[tuple[TokenView, ...], says("The oldest first.")]


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to be made. What it is limited to is all that it reaches: `types` and `services` are one list,
    and what it changes must be at none but its `sites`."""

    name: Annotated[
        str, says("Whose it is, or what for; no two have the same.", "ci", min_length=1, max_length=100)
    ]
    role: Annotated[Role, says("viewer reads, operator changes resources, admin does all.", "operator")]
    types: Annotated[_Names | None, says("Only resources of these types.", ["counter"])] = None
    services: Annotated[_Names | None, says("Only resources of these services.", ["image"])] = None
    sites: Annotated[_Names | None, says("Only what is at these sites.", ["site1"])] = None
    lasts_s: Annotated[
        Annotated[float, Meta(gt=0, le=3.2e9)] | None,
        says("For how long it is good, in seconds; null: for ever.", 7776000.0),
    ] = 90 * 86_400.0


class MadeToken(Struct, frozen=True, kw_only=True):
    """A token that was made. Its secret is told this once."""

    token: Annotated[TokenView, says("What it is.")]
    secret: Annotated[str, says("To be shown as `Authorization: Bearer …`.", "cheops_mJ8…")]


class SignIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a browser signs in with."""

    token: Annotated[str, says("A token of this site.", "cheops_mJ8…", max_length=200)]


class Session(Struct, frozen=True, kw_only=True):
    """Who asks."""

    kind: Annotated[str, says("How it is known: local, token or open.", "token")]
    name: Annotated[str, says("The name of the token, or the user.", "ci")]
    role: Annotated[Role | None, says("What it may.", "operator")]
    types: Annotated[tuple[str, ...] | None, says("The types it is limited to; null: no limit.", None)]
    services: Annotated[tuple[str, ...] | None, says("The services it is limited to.", None)]
    sites: Annotated[tuple[str, ...] | None, says("The sites it is limited to.", None)]


class AuditEntry(Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """Something that somebody did, or was refused."""

    n: Annotated[int, says("The number of the line, from the first that was ever written.", 118)]
    at: Annotated[str, says("When.", "2026-11-16T01:41:31.885Z")]
    who: Annotated[str, says("How it is known, and its name.", "token:ci")]
    source: Annotated[str, says("From which address; `unix`: the agent's own socket.", "10.0.0.7")]
    what: Annotated[str, says("What was asked.", "POST /api/v1/resources/{id}/operations")]
    resource: Annotated[str, says("Of which resource.", "counter")]
    type: Annotated[str, says("Its type.", "counter")]
    operation: Annotated[str, says("Which operation that made.", "site1:3")]
    outcome: Annotated[str, says("done, refused or failed.", "done")]
    status: Annotated[int, says("The status of the answer.", 200)]
    reason: Annotated[str, says("Why it was refused.", "")]
    times: Annotated[int, says("How often, where many of the same came at once.", 1)]


class AuditLog(Struct, frozen=True, kw_only=True):
    """Lines of the audit log."""

    entries: Annotated[tuple[AuditEntry, ...], says("The newest last.")]
    broken: Annotated[tuple[str, ...], says("Where lines were changed or are missing.", [])]
    trouble: Annotated[str | None, says("Why nothing can be written now.", None)]
