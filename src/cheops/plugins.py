"""What installed packages add to Cheops, found by their entry points.

Looking for them reads the disk, so it is done at the edge (command line, agent), and the result is
handed to the pure core as a value.
"""

from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from cheops.errors import CheopsError
from cheops.scope.builtin import BUILTIN
from cheops.scope.functions import Function, Functions

SCOPE_FUNCTIONS = "cheops.scope_functions"


class PluginError(CheopsError):
    """An installed plugin cannot be used. Refused as a whole: a scope must not change its meaning
    with what happened to load."""


@lru_cache(maxsize=1)
def scope_functions() -> Functions:
    """The built-in scope functions and those of installed packages."""
    functions = BUILTIN
    for entry in sorted(entry_points(group=SCOPE_FUNCTIONS), key=lambda entry: entry.name):
        try:
            functions = functions.with_function(_loaded(entry))
        except Exception as error:  # whatever somebody else's module raises while it is imported
            raise PluginError(
                f"the plugin '{entry.name}' ({entry.value}, {SCOPE_FUNCTIONS}) cannot be used: {error}\n"
                "  Mend it, or uninstall the package that brings it."
            ) from error
    return functions


def _loaded(entry: EntryPoint) -> Function:
    function = entry.load()
    if not isinstance(function, Function):
        raise TypeError(f"it is a {type(function).__name__}, not a cheops.scope.Function")
    return function
