"""Replicants in the API's words."""

from cheops.api.models import ReplicantView
from cheops.api.views.operations import gone_from
from cheops.api.views.status import summary
from cheops.backends.http.backend import http_backend
from cheops.backends.http.submission import creation_of
from cheops.config.services import service_of
from cheops.engine.replica import Replica
from cheops.node.node import Node


def replicant_view(node: Node, replica: Replica, up: set[str]) -> ReplicantView:
    found, backend = summary(replica, up), http_backend(node)
    copy = backend.copies.index.copies.get(replica.resource)
    begun = creation_of(replica)
    return ReplicantView(
        id=replica.resource,
        service=service_of(found.type) or "",
        path=copy.path if copy else begun.path if begun else "",
        sites=found.sites,
        gone=gone_from(replica),
        local_id=copy.local_id if copy else None,
        overall=found.overall,
        deleted=found.deleted,
        waits=_doubt(replica) or backend.waits.get(replica.resource),
    )


def _doubt(replica: Replica) -> str | None:
    if replica.applied.unknown is None:
        return None
    return f"it is unknown whether {replica.applied.unknown.id} ran here; see 'cheops resolve {replica.resource}'"
