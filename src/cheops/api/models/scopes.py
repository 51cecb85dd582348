"""Scopes, understood and explained, with nothing executed."""

from typing import Annotated, Any

from msgspec import Struct

from cheops.api.models.says import says

_TREE = {"kind": "otherwise", "parts": [{"kind": "site", "site": "site1"}]}


class ScopeMistake(Struct, frozen=True, kw_only=True):
    """What is wrong with a text, and where."""

    problem: Annotated[str, says("What.", "unknown site 'site9'")]
    hint: Annotated[str, says("What would be accepted.", "Sites: site1, site2")]
    text: Annotated[str, says("The text that the place is in: as typed, or the canonical form.", "site9")]
    start: Annotated[int | None, says("From which character on, counted from 0; null: no place.", 0)]
    end: Annotated[int | None, says("Before which.", 5)]


class ScopeSite(Struct, frozen=True, kw_only=True):
    """A site and its part in a route."""

    site: Annotated[str, says("Which.", "site2")]
    role: Annotated[str, says("Its part.", "first choice")]
    up: Annotated[bool, says("Whether it can be reached now.", True)]
    rtt_ms: Annotated[float | None, says("How far it is from here.", 12.5)]


class ScopeMethod(Struct, frozen=True, kw_only=True):
    """What one kind of request would do."""

    method: Annotated[str, says("read, create, update or delete.", "read")]
    sites: Annotated[tuple[str, ...], says("Where it would be executed.", ["site1"])]
    latency_ms: Annotated[float | None, says("After which the answer is expected.", 12.5)]
    does: Annotated[str, says("In words.", "asks site1")]


class ScopeService(Struct, frozen=True, kw_only=True):
    """What a scope means for one service."""

    service: Annotated[str | None, says("Which; null: any.", "image")]
    location: Annotated[str, says("The location that the scope gives it.", "site1 ; site2")]
    means: Annotated[str, says("The same with functions replaced by operators.", "site1 ; site2")]
    tree: Annotated[dict[str, Any], says("How it is understood.", _TREE)]
    route: Annotated[dict[str, Any], says("Where it leads.", {"kind": "one", "site": "site1"})]
    sites: Annotated[tuple[ScopeSite, ...], says("In the order in which they are turned to.")]
    methods: Annotated[tuple[ScopeMethod, ...], says("What each kind of request would do.")]
    notes: Annotated[tuple[str, ...], says("What else is to be said.", [])]


class ScopeExplanation(Struct, frozen=True, kw_only=True):
    """A scope as this site would understand it now, or what is wrong with it."""

    canonical: Annotated[str | None, says("The one form of it; null: it is not a scope.", "{image: site1}")]
    here: Annotated[str, says("The site from which it is seen.", "site1")]
    services: Annotated[tuple[ScopeService, ...], says("One for each service that it names.")]
    mistake: Annotated[ScopeMistake | None, says("What is wrong with it; null: nothing.", None)]
