"""scope-lang: the language in which users say *where*. Text → scope → route, all pure.

scope = parse("{compute: site1, image: site1 & site2}")
resolve(scope, "image", snapshot)  # Replicas(("site1", "site2"), Consistency.EVENTUAL)
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
