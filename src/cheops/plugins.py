"""Plugins: what installed packages add to Cheops by their entry points.

Reading entry points is disk I/O, so the command line and the agent do it, and pass the result to the pure core as a
value.

importlib.metadata, with what it imports, takes 1 MB, which an agent without plugins should not have. So it is imported
only if some package names a group of ours.

All scope functions are loaded, always. Plugins of resource types are loaded by the name in the configuration, so a
plugin that no type uses is not even imported.
"""

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from cheops.engine.settings import Decompose, Logic
from cheops.errors import CheopsError
from cheops.scope.functions import BUILTIN, Function, Functions
from cheops.text import listed, nearest, printable, shortened

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    _Entry: TypeAlias = "EntryPoint | _BuiltIn"

SCOPE_FUNCTIONS = "cheops.scope_functions"
LOGIC = "cheops.logic"
ON_ERROR = "cheops.on_error"
BACKENDS = "cheops.backends"


class _BuiltIn(NamedTuple):
    """As an entry point."""

    name: str
    value: str
    group: str

    def load(self) -> object:
        module, _, attribute = self.value.partition(":")
        return getattr(import_module(module), attribute)


# Not in the package's metadata, so that a checkout works without being installed anew.
BUILTIN_BACKENDS: dict[str, "_Entry"] = {
    "command": _BuiltIn("command", "cheops.backends.command.backend:CommandBackend", BACKENDS),
    "http": _BuiltIn("http", "cheops.backends.http.backend:HttpBackend", BACKENDS),
}
BUILTIN_LOGIC: dict[str, "_Entry"] = {"text": _BuiltIn("text", "cheops.logic.text:text_logic", LOGIC)}
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
    for entry in sorted(_entry_points(SCOPE_FUNCTIONS), key=lambda entry: entry.name):
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


def _entry_points(group: str) -> "Sequence[EntryPoint]":
    if not _is_named_by_a_package(group.encode()):
        return ()
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    return tuple(entry_points(group=group))


def _is_named_by_a_package(group: bytes) -> bool:
    """True also where it cannot be seen here: in archives, and with finders of packages that are not Python's own."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    for place in map(Path, sys.path):
        if place.is_file():
            return True
        for file in ("*.dist-info/entry_points.txt", "*.egg-info/entry_points.txt", "*.egg/EGG-INFO/entry_points.txt"):
            if any(group in path.read_bytes() for path in place.glob(file)):
                return True
    return False


def _loaded(entry: "_Entry") -> Function:
    function = entry.load()
    if not isinstance(function, Function):
        raise TypeError(f"it is a {type(function).__name__}, not a cheops.scope.Function")
    return function


def _load_callable(entry: "_Entry") -> Callable[[Any], object]:
    try:
        loaded = entry.load()
        if not callable(loaded):
            raise TypeError(f"it is a {type(loaded).__name__}, not a function")  # noqa: TRY301 - as above
    except Exception as error:  # the import of a foreign module can raise anything
        raise _unusable(entry, error) from error
    return cast("Callable[[Any], object]", loaded)


def _the_entry(group: str, name: str) -> "EntryPoint":
    declared = _entry_points(group)
    installed = {entry.name for entry in declared} | (set(BUILTIN_LOGIC) if group == LOGIC else set())
    # By value: one package can be on the path twice, as installed and as a checkout, and then both entries are equal.
    entries = {entry.value: entry for entry in declared if entry.name == name}
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


def _unusable(entry: "_Entry", error: Exception) -> PluginError:
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
