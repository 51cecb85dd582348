"""Whether a site that shows a good certificate may come in now, asked with each request.

A site that was forgotten is refused at once, also on connections that it has already, and told what was
decided: that is how it learns of it. A request that a site hands on must come from the site that it names.
"""

import time
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cheops.api.acts import turned_away
from cheops.api.forwarding import HOP_HEADER
from cheops.api.problems import problem
from cheops.node.identity import FORGED_SENDER, NO_SITE, banned
from cheops.node.node import Node
from cheops.sync.heart import FORGOTTEN
from cheops.text import printable, shortened


class Admission:
    """Stands before the application."""

    def __init__(self, node: Node, app: ASGIApp) -> None:
        self._node = node
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._node.keyring and (refusal := self._refusal(scope)):
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        state = scope.get("state", {})
        if (bad := state.get("bad_certificate")) is not None:
            turned_away(self._node, NO_SITE, "", _address(scope), bad)
            return problem(403, bad)
        if (identity := state.get("certificate")) is not None and (
            out := banned(self._node.mesh, identity, time.time())
        ):
            turned_away(self._node, out.reason, identity.site, _address(scope), out.detail)
            about = out.member
            more = {FORGOTTEN: (about.name, about.stamp_ms, about.forgotten)} if about else {}
            return problem(403, out.detail, fault="peer", definite=True, **more)
        hop = Headers(scope=scope).get(HOP_HEADER)
        if hop is not None and unquote(hop) != state.get("peer"):
            who = state.get("peer") or ""
            turned_away(self._node, FORGED_SENDER, who, _address(scope), f"{HOP_HEADER}: {hop}")
            named = printable(shortened(unquote(hop)))
            return problem(403, f"only '{named}' itself, with its certificate, may hand on what it was asked")
        return None


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""
