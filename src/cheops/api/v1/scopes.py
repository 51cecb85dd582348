"""Scopes: what one means here and now. Nothing is executed."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from cheops.api.models import ScopeExplanation, ScopeMistake, ScopeService
from cheops.api.openapi import responses
from cheops.api.request import NodeOf, json_response
from cheops.plugins import scope_functions
from cheops.scope import parse
from cheops.scope.errors import ScopeError
from cheops.scope.explanation import explain, explanation_data
from cheops.scope.names import name_problem, normal
from cheops.scope.snapshot import Snapshot

router = APIRouter(tags=["scopes"])
_MOST_CHARACTERS = 16_384  # of what stands in an address


@router.get(
    "/scope",
    operation_id="explainScope",
    summary="What a scope means at this site now: tree, sites, route, and what each method would do",
    description="A text that is no scope is an answer too: `mistake` says what is wrong, and where.",
    responses=responses(ScopeExplanation, "What it means, or what is wrong with it."),
)
async def explain_scope(
    node: NodeOf,
    text: Annotated[str, Query(max_length=_MOST_CHARACTERS, description="The scope.", examples=["site1"])],
    service: Annotated[str, Query(max_length=200, description="For this service; empty: for each that it names.")] = "",
) -> Response:
    return json_response(await asyncio.to_thread(explained, text, service, node.name, node.snapshot()))


def explained(text: str, service: str, here: str, snapshot: Snapshot) -> ScopeExplanation:
    canonical: str | None = None
    try:
        if service and (problem := name_problem(normal(service))):
            raise ScopeError(f"the service: {problem}")  # noqa: TRY301 - told as all the others are
        functions = scope_functions()
        scope = parse(text, functions)
        canonical = str(scope)
        data = explanation_data(explain(scope, snapshot, normal(service) or None, functions))
    except ScopeError as error:
        return ScopeExplanation(canonical=canonical, here=here, services=(), mistake=_mistake(error, text))
    services = msgspec.convert(data["services"], tuple[ScopeService, ...])
    return ScopeExplanation(canonical=canonical, here=here, services=services, mistake=None)


def _mistake(error: ScopeError, text: str) -> ScopeMistake:
    place = error.place
    return ScopeMistake(
        problem=error.problem,
        hint=error.hint or "",
        text=place.text if place else text,
        start=place.start if place else None,
        end=place.end if place else None,
    )
