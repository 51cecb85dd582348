"""Functions are added without touching the interpreter: in code, or by an installed package."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cheops.scope import (
    BUILTIN,
    And,
    At,
    Call,
    Context,
    Duration,
    Function,
    Kind,
    Location,
    Parameter,
    Replicas,
    ScopeError,
    ScopeSyntaxError,
    parse,
    resolve,
)
from tests.scope.world import world
from tests.support.command import ROOT, run_process


def everywhere(context: Context) -> Location:
    return And(tuple(At(site.name) for site in context.snapshot.offering(context.service)))


def again(_context: Context, site: At) -> Location:
    return Call("again", (site,))


EVERYWHERE = Function("everywhere", (), "a replica at every site", everywhere)
AGAIN = Function("again", (Parameter("site", Kind.SITE),), "never ends", again)
FUNCTIONS = BUILTIN.with_function(EVERYWHERE).with_function(AGAIN)
ALL = ("site1", "site2", "site3", "site4")


def test_a_function_of_ones_own_is_resolved_like_any_other() -> None:
    scope = parse("{image: everywhere()}", FUNCTIONS)
    assert str(scope) == "{image: everywhere()}"
    assert resolve(scope, "image", world(), FUNCTIONS) == Replicas(ALL)


def test_functions_combine_with_operators_and_functions() -> None:
    assert resolve(parse("strong(everywhere() & site1)", FUNCTIONS), None, world(), FUNCTIONS).sites == ALL


def test_registries_do_not_leak_into_each_other() -> None:
    parse("everywhere()", FUNCTIONS)
    with pytest.raises(ScopeSyntaxError, match="unknown function 'everywhere'"):
        parse("everywhere()")


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="'everywhere' is already defined"):
        FUNCTIONS.with_function(EVERYWHERE)


@pytest.mark.parametrize("name", ["a&b", "", "two words", "(", "10 ms"])
def test_a_name_that_cannot_be_called_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a scope function"):
        BUILTIN.with_function(Function(name, (), "", everywhere))


@pytest.mark.parametrize(
    ("gives", "problem"),
    [
        (lambda _context: At("atlantis"), "the scope function 'odd' returned the unknown site 'atlantis'"),
        (lambda _context: None, "the scope function 'odd' returned a NoneType, not a location"),
        (lambda _context: "site1", "the scope function 'odd' returned a str, not a location"),
        (
            lambda _context: And((At("site1"),)),
            "the scope function 'odd' failed: ValueError: And needs two or more parts",
        ),
        (lambda _context: 1 / 0, "the scope function 'odd' failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_faulty_function_is_named(gives: Callable[[Context], Any], problem: str) -> None:
    functions = BUILTIN.with_function(Function("odd", (), "odd", gives))
    with pytest.raises(ScopeError) as refused:
        resolve(parse("odd()", functions), None, world(), functions)
    assert refused.value.problem == problem


def test_a_function_without_end_is_refused() -> None:
    with pytest.raises(ScopeError, match="again and again"):
        resolve(parse("again(site1)", FUNCTIONS), None, world(), FUNCTIONS)


def test_a_function_that_is_not_there_when_resolving_is_refused() -> None:
    with pytest.raises(ScopeError, match="unknown function 'everywhere'"):
        resolve(parse("everywhere()", FUNCTIONS), None, world())


def test_a_site_parameter_takes_a_function_that_gives_one_site() -> None:
    functions = FUNCTIONS.with_function(Function("first", (), "the first site", lambda _context: At("site1")))
    assert resolve(parse("around(first(), 0ms)", functions), None, world(), functions).sites == ("site1",)
    with pytest.raises(ScopeError, match="is one site, and 'site1 & site2"):
        resolve(parse("around(everywhere(), 0ms)", functions), None, world(), functions)


def test_arguments_arrive_expanded_and_typed() -> None:
    seen: list[object] = []

    def spy(_context: Context, site: At, radius: Duration, rest: Location) -> Location:
        seen.extend((site, radius, rest))
        return site

    parameters = (
        Parameter("site", Kind.SITE),
        Parameter("radius", Kind.DURATION),
        Parameter("rest", Kind.LOCATION),
    )
    functions = FUNCTIONS.with_function(Function("spy", parameters, "looks", spy))
    resolve(parse("spy(site1, 2s, everywhere())", functions), None, world(), functions)
    assert seen == [At("site1"), Duration(2_000_000), And(tuple(map(At, ALL)))]


def test_the_example_of_the_documentation_works() -> None:
    page = (ROOT / "docs" / "scope-lang.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(# edge_functions.py\n.*?)```", page, re.DOTALL)
    assert example
    namespace: dict[str, Any] = {}
    exec(example.group(1), namespace)  # noqa: S102
    functions = BUILTIN.with_function(namespace["PAIR"])
    assert resolve(parse("pair(site3)", functions), "image", world(), functions).sites == ("site3", "site2")
    alone = world("site1")
    assert resolve(parse("pair(site1)", functions), "image", alone, functions).sites == ("site1",)


PLUGIN = """
from cheops.scope import At, Function, Kind, Otherwise, Parameter

def either(context, one, other):
    return Otherwise((one, other))

EITHER = Function("either", (Parameter("one", Kind.SITE), Parameter("other", Kind.SITE)), "one of two", either)
"""


def install_plugin(where: Path, code: str, value: str) -> dict[str, str]:
    """What installing a package leaves behind: a module, and a note of its entry point."""
    (where / "edgeplugin.py").write_text(code)
    (where / "edgeplugin-1.0.dist-info").mkdir()
    (where / "edgeplugin-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: edgeplugin\nVersion: 1.0\n"
    )
    (where / "edgeplugin-1.0.dist-info" / "entry_points.txt").write_text(
        f"[cheops.scope_functions]\neither = {value}\n"
    )
    return {**os.environ, "PYTHONPATH": str(where)}


def test_an_installed_package_adds_a_function_to_the_command(tmp_path: Path) -> None:
    env = install_plugin(tmp_path, PLUGIN, "edgeplugin:EITHER")
    ran = run_process("scope", "explain", "either(a, b)", env=env)
    assert "means  a ; b" in ran.out
    assert ran.code == 0
    assert "either(one, other)" in run_process("scope", "functions", env=env).out


@pytest.mark.parametrize(
    ("code", "value", "why"),
    [
        ("import nowhere_to_be_found", "edgeplugin:EITHER", "No module named 'nowhere_to_be_found'"),
        ("EITHER = 42", "edgeplugin:EITHER", "it is a int, not a cheops.scope.Function"),
        (PLUGIN.replace('"either"', '"around"'), "edgeplugin:EITHER", "'around' is already defined"),
    ],
)
def test_a_broken_plugin_is_named_and_nothing_is_guessed(tmp_path: Path, code: str, value: str, why: str) -> None:
    ran = run_process("scope", "parse", "a", env=install_plugin(tmp_path, code, value))
    assert (ran.code, ran.out) == (1, "")
    assert f"the plugin 'either' ({value}, cheops.scope_functions) cannot be used: " in ran.err
    assert why in ran.err
    assert "Traceback" not in ran.err
