"""The agent's HTTP application: everything that is answered on its one address."""

from starlette.applications import Starlette

from cheops.api.forms import form_routes
from cheops.api.peers import peer_routes
from cheops.api.problems import on_any_error, on_cheops_error
from cheops.errors import CheopsError
from cheops.node.node import Node


def application(node: Node) -> Starlette:
    return Starlette(
        routes=[*form_routes(node), *peer_routes(node)],
        exception_handlers={CheopsError: on_cheops_error, Exception: on_any_error},
    )
