"""What a browser that asks for an address will need next: the scripts of a view, and its first questions.

The page decides itself what it shows (web/main.js), and asks for what it lacks: this is for speed alone. But
the questions must be word for word those of the view, or they are asked twice.
"""

import re
from typing import NamedTuple

_API = "/api/v1"
_VIEWS = {
    "": "sites",
    "sites": "site",
    "resources": "site",
    "new": "new",
    "scope": "scope",
    "replicants": "replicants",
    "requests": "requests",
}
_ID = re.compile(
    r"[A-Za-z0-9%._~!*()-]{1,800}"
)  # one segment as browsers send it, and nothing that ends an attribute


class Needs(NamedTuple):
    view: str
    questions: tuple[str, ...] = ()


def needs(path: str, query: str) -> Needs:
    """Of an address below /ui, percent-encoded as it was sent."""
    first, _, rest = path.strip("/").partition("/")
    if first == "resources" and rest:
        return Needs("resource", (f"{_API}/resources/{rest}/lanes?fresh=0.3",) if _ID.fullmatch(rest) else ())
    view = _VIEWS.get(first, "sites")
    if first == "":
        return Needs(view, (f"{_API}/sites", f"{_API}/demo/wires"))
    if first == "resources" and not query:
        return Needs(view, (f"{_API}/resources?limit=50&fresh=0.3", f"{_API}/types"))
    return Needs(view)
