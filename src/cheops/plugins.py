"""What installed packages add to Cheops, found by their entry points.

Looking for them reads the disk, so it is done at the edge (command line, agent), and the result is
handed to the pure core as a value.

Scope functions are all there, always. The plugins of resource types are taken by the name that the
configuration gives, so that one that nobody asked for is not even imported.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from cheops.engine.settings import Decompose, Logic
from cheops.errors import CheopsError
from cheops.scope.functions import BUILTIN, Function, Functions
from cheops.text import listed, nearest, printable, shortened

SCOPE_FUNCTIONS = "cheops.scope_functions"
LOGIC = "cheops.logic"
ON_ERROR = "cheops.on_error"
BACKENDS = "cheops.backends"

# Not in the package's metadata, so that a checkout works without being installed anew.
BUILTIN_BACKENDS = {
    "command": EntryPoint("command", "cheops.backends.command.backend:CommandBackend", BACKENDS),
    "http": EntryPoint("http", "cheops.backends.http.backend:HttpBackend", BACKENDS),
}


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
            raise _unusable(entry, error) from error
    return functions


def logic_named(name: str) -> Logic:
    """The consistency logic of this name: concurrent operations in, commands to run instead out."""
    return cast("Logic", _callable_named(LOGIC, name))


def on_error_named(name: str) -> Decompose:
    """What turns an operation that failed into steps, of this name."""
    return cast("Decompose", _callable_named(ON_ERROR, name))


def backend_named(name: str) -> Callable[[Any], object]:
    """What creates the backend of this name from a `BackendContext`; see cheops.backends."""
    return _load_callable(BUILTIN_BACKENDS.get(name) or _the_entry(BACKENDS, name))


def _loaded(entry: EntryPoint) -> Function:
    function = entry.load()
    if not isinstance(function, Function):
        raise TypeError(f"it is a {type(function).__name__}, not a cheops.scope.Function")
    return function


def _callable_named(group: str, name: str) -> object:
    return _load_callable(_the_entry(group, name))


def _load_callable(entry: EntryPoint) -> Callable[[Any], object]:
    try:
        loaded = entry.load()
        if not callable(loaded):
            raise TypeError(f"it is a {type(loaded).__name__}, not a function")  # noqa: TRY301 - as above
    except Exception as error:  # whatever somebody else's module raises while it is imported
        raise _unusable(entry, error) from error
    return cast("Callable[[Any], object]", loaded)


def _the_entry(group: str, name: str) -> EntryPoint:
    installed = {entry.name for entry in entry_points(group=group)}
    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if not found:
        meant = nearest(name, installed)
        hint = f"did you mean '{meant}'? " if meant else ""
        raise PluginError(
            f"unknown plugin '{printable(shortened(name))}'; {hint}Installed for {group}: {listed(installed)}"
        )
    if len(found) > 1:
        raise PluginError(
            f"the plugin '{name}' ({group}) is there more than once: {listed(found)}; uninstall all but one"
        )
    return next(iter(found.values()))


def _unusable(entry: EntryPoint, error: Exception) -> PluginError:
    return PluginError(
        f"the plugin '{entry.name}' ({entry.value}, {entry.group}) cannot be used: {error}\n"
        "  Fix it, or uninstall the package that brings it."
    )
