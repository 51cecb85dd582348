"""Is the agent well, and what is wrong with a request."""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from cheops.api.models.says import says


class Health(Struct, frozen=True, kw_only=True):
    """Whether the agent works (`/healthz`) or takes operations (`/readyz`)."""

    ok: Annotated[bool, says("The answer.", True)]
    site: Annotated[str, says("Who answers.", "site1")]
    version: Annotated[str, says("The version of the agent.", "0.1.0")]
    detail: Annotated[str, says("Why not, if not.", "")]


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but perhaps not as it is meant
    FAILED = "failed"


class Check(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    group: Annotated[
        str, says("configuration, store, clocks, security, peers, services, backends or versions.", "peers")
    ]
    name: Annotated[str, says("What.", "site2 answers")]
    level: Annotated[Level, says("How it is.", "ok")]
    ok: Annotated[bool, says("Whether it works: ok or a warning.", True)]
    detail: Annotated[str, says("What was found.", "12.5 ms away")]
    hint: Annotated[str, says("What to do about it, if it is not.", "")]
    anchor: Annotated[str, says("Where the documentation speaks of it.", "docs/troubleshooting.md#peers")]


class Checks(Struct, frozen=True, kw_only=True):
    """Everything that was looked at, in groups."""

    site: Annotated[str, says("Who looked.", "site1")]
    ok: Annotated[bool, says("Whether all is as it should be.", True)]
    checks: Annotated[tuple[Check, ...], says("Group by group.")]


class Problem(Struct, frozen=True, kw_only=True):
    """What is wrong (RFC 9457)."""

    type: Annotated[str, says("about:blank: the status says which kind.", "about:blank")]
    title: Annotated[str, says("The status in words.", "Not Found")]
    status: Annotated[int, says("The status of the answer.", 404)]
    detail: Annotated[str, says("What is wrong, where, and what to do.", "no such resource is known here")]
    fault: Annotated[str | None, says("Whose: client, application, peer or us.", "client")] = None
    definite: Annotated[bool | None, says("false: asking again may help.", True)] = None
