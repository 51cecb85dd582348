"""scope-lang: the language in which a request says *where* it runs. Text → scope → route, all pure.

`parse` turns a text into a `Scope`, a frozen tree; `str(scope)` is its canonical text. `resolve` turns a scope, a
service and a `Snapshot` (what the site knows now: sites, services, liveness, round-trip times) into a `Route`. Both
raise `ScopeError`, with a caret under the place. The package imports `cheops.errors` and `cheops.text` only.

    scope = parse("{compute: site1, image: site1 & site2}")
    resolve(scope, "image", snapshot)  # Replicas(("site1", "site2"), Consistency.EVENTUAL)

    parser                 from text to tree
    grammar.lark, grammar  the same for every text, by lark, and the errors for a text that is no scope
    names                  which names need quotes
    tree                   the tree and its canonical text
    functions              around(), strong() …: where to add a function, and what else a new kind of argument needs
    snapshot, route        what a site knows, and where a request goes
    explanation            what `cheops scope explain` shows
"""

from cheops.scope.errors import ScopeError, ScopeResolutionError, ScopeSyntaxError
from cheops.scope.functions import BUILTIN, Context, Function, Functions, Kind, Parameter
from cheops.scope.parser import parse
from cheops.scope.route import Cross, Fallback, One, Replicas, Route, resolve
from cheops.scope.snapshot import SiteInfo, Snapshot
from cheops.scope.tree import Across, And, At, Binding, Call, Consistency, Duration, Location, Otherwise, Scope

__all__ = [
    "BUILTIN",
    "Across",
    "And",
    "At",
    "Binding",
    "Call",
    "Consistency",
    "Context",
    "Cross",
    "Duration",
    "Fallback",
    "Function",
    "Functions",
    "Kind",
    "Location",
    "One",
    "Otherwise",
    "Parameter",
    "Replicas",
    "Route",
    "Scope",
    "ScopeError",
    "ScopeResolutionError",
    "ScopeSyntaxError",
    "SiteInfo",
    "Snapshot",
    "parse",
    "resolve",
]
