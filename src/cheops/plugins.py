"""Plugins: what installed packages add to Cheops by their entry points.

Reading entry points is disk I/O, so the command line and the agent do it, and pass the result to the pure core as a
value.

All scope functions are loaded, always. Plugins of resource types are loaded by the name in the configuration, so a
plugin that no type uses is not even imported.
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
BUILTIN_LOGIC = {"text": EntryPoint("text", "cheops.logic.text:text_logic", LOGIC)}
# What a built-in needs beyond the dependencies of Cheops: the package, and the extra that brings it.
_EXTRAS = {"loro": "text"}


class PluginError(CheopsError):
    """A plugin is unknown or cannot be loaded.

    This is an error, and not a warning: a scope must not change its meaning with the plugins that happen to load.
    """


@lru_cache(maxsize=1)
def scope_functions() -> Functions:
    """The built-in scope functions and those of installed packages."""
    functions = BUILTIN
    for entry in sorted(entry_points(group=SCOPE_FUNCTIONS), key=lambda entry: entry.name):
        try:
            functions = functions.with_function(_loaded(entry))
        except Exception as error:  # the import of a foreign module can raise anything
            raise _unusable(entry, error) from error
    return functions


def logic_named(name: str) -> Logic:
    """The consistency logic of this name: concurrent operations in, commands to run instead out."""
    return cast("Logic", _load_callable(BUILTIN_LOGIC.get(name) or _the_entry(LOGIC, name)))


def on_error_named(name: str) -> Decompose:
    """The plugin of this name that splits a failed operation into steps."""
    return cast("Decompose", _load_callable(_the_entry(ON_ERROR, name)))


def backend_named(name: str) -> Callable[[Any], object]:
    """The function that creates the backend of this name from a `BackendContext`; see cheops.backends."""
    return _load_callable(BUILTIN_BACKENDS.get(name) or _the_entry(BACKENDS, name))


def _loaded(entry: EntryPoint) -> Function:
    function = entry.load()
    if not isinstance(function, Function):
        raise TypeError(f"it is a {type(function).__name__}, not a cheops.scope.Function")
    return function


def _load_callable(entry: EntryPoint) -> Callable[[Any], object]:
    try:
        loaded = entry.load()
        if not callable(loaded):
            raise TypeError(f"it is a {type(loaded).__name__}, not a function")  # noqa: TRY301 - as above
    except Exception as error:  # the import of a foreign module can raise anything
        raise _unusable(entry, error) from error
    return cast("Callable[[Any], object]", loaded)


def _the_entry(group: str, name: str) -> EntryPoint:
    installed = {entry.name for entry in entry_points(group=group)} | (set(BUILTIN_LOGIC) if group == LOGIC else set())
    # By value: one package can be on the path twice, as installed and as a checkout, and then both entries are equal.
    entries = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if not entries:
        meant = nearest(name, installed)
        hint = f"did you mean '{meant}'? " if meant else ""
        raise PluginError(
            f"unknown plugin '{printable(shortened(name))}'; {hint}Installed for {group}: {listed(installed)}"
        )
    if len(entries) > 1:
        raise PluginError(
            f"the plugin '{name}' ({group}) is there more than once: {listed(entries)}; uninstall all but one"
        )
    return next(iter(entries.values()))


def _unusable(entry: EntryPoint, error: Exception) -> PluginError:
    missing = error.name if isinstance(error, ModuleNotFoundError) and entry.value.startswith("cheops.") else None
    if extra := _EXTRAS.get(missing or ""):
        return PluginError(
            f"the plugin '{entry.name}' ({entry.group}) needs the package {missing}, which is not installed: "
            f"pip install 'cheops[{extra}]'"
        )
    return PluginError(
        f"the plugin '{entry.name}' ({entry.value}, {entry.group}) cannot be used: {error}\n"
        "  Fix it, or uninstall the package that brings it."
    )
