"""The audit log, for administrators."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from cheops.api.models import AuditEntry, AuditLog
from cheops.api.openapi import responses
from cheops.api.request import NodeOf, json_response
from cheops.node.node import Node
from cheops.security.audit_entries import MOST_LINES, AuditPage, AuditQuery, read_entries

router = APIRouter(tags=["access"])


@router.get(
    "/audit",
    operation_id="readAudit",
    summary="Who did what at this site, and what was refused to whom",
    responses=responses(AuditLog, "The last lines that are asked for."),
)
async def read_audit(
    node: NodeOf,
    since: Annotated[
        str, Query(max_length=40, description="From this time on, such as 2026-11-16T01:41; all: empty.")
    ] = "",
    who: Annotated[str, Query(max_length=300, description="Only of this one, such as token:ci or ci.")] = "",
    outcome: Annotated[str, Query(max_length=20, description="Only done, refused or failed.")] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_LINES, description="How many at most.")] = 100,
) -> Response:
    found = await asyncio.to_thread(_read, node, AuditQuery(since, who, outcome, limit))
    entries = tuple(AuditEntry(**msgspec.structs.asdict(entry)) for entry in found.entries)
    return json_response(AuditLog(entries=entries, broken=tuple(found.broken[:100]), trouble=node.audit.trouble))


def _read(node: Node, wanted: AuditQuery) -> AuditPage:
    node.audit.flush()
    return read_entries(node.audit.path, node.audit.files, wanted)
