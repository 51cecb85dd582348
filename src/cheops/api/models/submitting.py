"""What clients ask for, and what they hear."""

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Struct

from cheops.api.models.says import says
from cheops.log.operation import Kind, Status, Verdict

MAX_TIMEOUT_S = 3600.0


class Wait(StrEnum):
    """For which answers to wait."""

    NONE = "none"  # until the operation is durable at the site that takes it
    FIRST = "first"  # until it was run there
    QUORUM = "quorum"  # until more than half of the sites have answered
    ALL = "all"  # until all have


class SubmitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operation as a client asks for it."""

    type: Annotated[str, says("As the matrix names it.", "inc", min_length=1, max_length=100)]
    command: Annotated[
        str,
        says("What to run at each site. `{name}`: a file that comes along.", "redis-cli incrby n 13"),
    ] = ""
    sites: Annotated[
        str, says("Where, in scope-lang's bare form. Needed for a new resource.", "site1 & site2")
    ] = ""
    resource_type: Annotated[str, says("For a new resource: its type in the configuration.", "counter")] = ""
    kind: Annotated[
        Kind, says("normal, or force: the new base, whatever was before; or delete.", "normal")
    ] = Kind.NORMAL
    matrix: Annotated[
        dict[str, Any] | None, says("A matrix that holds from now on, as in a matrix file.", None)
    ] = None


class SiteAnswer(Struct, frozen=True, kw_only=True):
    """What a site says of an operation. One per line where answers are streamed."""

    operation: Annotated[str, says("Which.", "site1:3")]
    site: Annotated[str, says("Who.", "site2")]
    status: Annotated[Status, says("PENDING: no answer yet; it goes on in the background.", "OK")]
    detail: Annotated[str, says("Why it failed, or what else is to be said.", "")]
    output: Annotated[str, says("What the command printed.", "42\n")]
    at: Annotated[str | None, says("When it was run, by that site's clock.", "2026-11-16T01:41:31.885Z")]
    took_ms: Annotated[int | None, says("How long it ran.", 8)]


class Accepted(Struct, frozen=True, kw_only=True):
    """An operation that is durable here, and what the sites have said of it by now."""

    operation: Annotated[str, says("Its name within the resource.", "site1:3")]
    resource: Annotated[str, says("On which resource.", "counter")]
    sites: Annotated[tuple[str, ...], says("Where it runs.", ["site1", "site2"])]
    answers: Annotated[tuple[SiteAnswer, ...], says("Those that came in time.")]
    verdict: Annotated[
        Verdict | None, says("What became of it at its origin; null: it was not run yet.", "OK")
    ]
    waiting_for: Annotated[tuple[str, ...], says("Sites that have not answered yet.", [])]
    satisfied: Annotated[bool, says("Whether as many answered as were waited for.", True)]


class SitesChange(StrEnum):
    SET = "set"
    ADD = "add"
    REMOVE = "remove"


class ChangeSites(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another list of sites for a resource."""

    sites: Annotated[str, says("Which, in scope-lang's bare form.", "site1 & site3")]
    how: Annotated[SitesChange, says("What to do with them.", "set")] = SitesChange.SET
    delete_copy: Annotated[
        bool, says("Whether the sites that the resource leaves delete what they have of it.", False)
    ] = False
    delete_with: Annotated[
        str,
        says("The command that deletes the copy; empty: the type's `reset`.", "redis-cli del counter"),
    ] = ""


class Resolution(StrEnum):
    HAPPENED = "happened"  # it took effect at this site
    NOT_HAPPENED = "not-happened"  # it did not, so it is run
    FORCE = "force"  # whatever there is: this command makes the state, everywhere


class ResolveRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's word on what Cheops cannot know."""

    resolution: Annotated[Resolution, says("What is the case, or is to be.", "happened")]
    operation: Annotated[
        str, says("The one that is UNKNOWN; may be left out where there is only one.", "site1:3")
    ] = ""
    site: Annotated[str, says("Where it is UNKNOWN; empty: at the site that is asked.", "")] = ""
    command: Annotated[str, says("With force: what makes the state.", "redis-cli set counter 29")] = ""
    type: Annotated[str, says("With force: the operation's type.", "set")] = "force"


class Resolved(Struct, frozen=True, kw_only=True):
    """What was done about it."""

    resource: Annotated[str, says("Which.", "counter")]
    site: Annotated[str, says("Where it was resolved.", "site1")]
    operation: Annotated[str, says("The one resolved, or the one that was forced.", "site1:3")]
    resolution: Annotated[Resolution, says("As asked.", "happened")]


class StateAt(Struct, frozen=True, kw_only=True):
    """The real state of the application at one site."""

    site: Annotated[str, says("Which.", "site2")]
    status: Annotated[str, says("OK, KO (the command failed) or TIMEOUT (no answer).", "OK")]
    output: Annotated[str, says("What the type's read command printed.", "42\n")]


class Verification(Struct, frozen=True, kw_only=True):
    """The real state everywhere, compared."""

    resource: Annotated[str, says("Which.", "counter")]
    same: Annotated[bool, says("Whether all sites answered, and the same.", True)]
    states: Annotated[tuple[StateAt, ...], says("One for each site.")]
    diff: Annotated[
        dict[str, tuple[str, ...]],
        says("For a site that differs from the first: the lines of a unified diff.", {}),
    ]
