"""Health and readiness, for machines that ask every few seconds."""

from starlette.responses import Response

from cheops import __version__
from cheops.api.models import Health, to_json
from cheops.node.node import Node
from cheops.security.principal import Kind, Principal


def health_answer(node: Node, who: Principal) -> Response:
    """Does the agent work: who gets this answer knows that the event loop turns."""
    return _answer(node, "", who)


def readiness_answer(node: Node, who: Principal) -> Response:
    """Does it take operations: not while nothing can be saved."""
    return _answer(node, node.pump.trouble or "", who)


def _answer(node: Node, why: str, who: Principal) -> Response:
    """To somebody who shows nothing, nothing more than yes or no."""
    if who.kind is Kind.NOBODY:
        health = Health(ok=not why, site="", version="", detail="")
    else:
        health = Health(ok=not why, site=node.name, version=__version__, detail=why)
    return Response(to_json(health), 503 if why else 200, media_type="application/json")
