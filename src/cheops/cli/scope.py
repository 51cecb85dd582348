"""`cheops scope …`: parse and explain scopes, for a snapshot of sites that a YAML file describes. Nothing is executed.

here: site1                 # optional: the site that receives the request
sites:
  site1:
    services: [compute, image]
    rtt_ms: {site2: 8}      # in either direction, once
  site2:
    services: [image]
    up: false               # optional, true by default
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from cheops.cli.output import Output, OutputOption, emit, milliseconds, print_table, table
from cheops.cli.rules import rules_command
from cheops.errors import ClientError
from cheops.plugins import scope_functions
from cheops.scope import Scope, SiteInfo, Snapshot, parse
from cheops.scope.explanation import ServiceExplanation, explain, explanation_data, scope_data
from cheops.scope.names import name_problem, normal
from cheops.scope.parser import MAX_CHARACTERS
from cheops.scope.route import Fallback, One, Replicas, Route
from cheops.scope.tree import Across, And, Argument, At, Call, Otherwise, sites_in
from cheops.text import listed, nearest
from cheops.yaml_file import Value, read_yaml


def read_sites(path: Path, here: str | None = None) -> Snapshot:
    """What the file says; `here` overrides the file's own."""
    root = read_yaml(path).record(required=("sites",), optional=("here",))
    records = {name: _site_record(name, value) for name, value in root["sites"].mapping().items()}
    if not records:
        raise root["sites"].fail("no sites are named")
    sites = {name: _site_info(name, record) for name, record in records.items()}
    if "here" in root:
        written = normal(root["here"].string())
        _check_known(root["here"], written, sites)
        here = here or written
    return Snapshot(here, sites, _rtts_ms(records))


def _site_record(name: str, value: Value) -> dict[str, Value]:
    if problem := name_problem(name):
        raise value.fail(problem)
    return value.record(optional=("services", "rtt_ms", "up"))


def _site_info(name: str, record: dict[str, Value]) -> SiteInfo:
    services = []
    for value in record["services"].items() if "services" in record else ():
        service = normal(value.string())
        if problem := name_problem(service):
            raise value.fail(problem)
        services.append(service)
    return SiteInfo(name, frozenset(services), record["up"].boolean() if "up" in record else True)


def _rtts_ms(records: dict[str, dict[str, Value]]) -> dict[frozenset[str], float]:
    rtts_ms: dict[frozenset[str], float] = {}
    for name, record in records.items():
        for other, value in record["rtt_ms"].mapping().items() if "rtt_ms" in record else ():
            _check_known(value, other, records)
            if other == name:
                raise value.fail("a site has no distance to itself; remove this")
            rtt_ms = value.number(minimum=0)
            if rtts_ms.setdefault(frozenset((name, other)), rtt_ms) != rtt_ms:
                raise value.fail(f"the opposite direction says {rtts_ms[frozenset((name, other))]:g} ms; give it once")
    return rtts_ms


def _check_known(value: Value, name: str, known: dict[str, SiteInfo] | dict[str, dict[str, Value]]) -> None:
    if name not in known:
        meant = nearest(name, known)
        hint = f"did you mean '{meant}'? " if meant else ""
        raise value.fail(f"unknown site '{name}'; {hint}Sites of this file: {listed(known)}")


app = typer.Typer(no_args_is_help=True)

ScopeArgument = Annotated[
    str,
    typer.Argument(metavar="SCOPE", show_default=False, help="The scope, or - to read it from standard input."),
]


@app.command("parse", epilog="Example: cheops scope parse '{compute: site1, image: site1 & site2}'")
def parse_command(text: ScopeArgument, output: OutputOption = Output.TABLE) -> None:
    """Parse a scope: show its tree and its canonical text."""
    scope = _parsed(text)

    def show(console: Console) -> None:
        console.print(_scope_tree(scope))
        console.print(f"\ncanonical: {scope}", soft_wrap=True)

    emit(output, scope_data(scope), show)


@app.command(
    "explain",
    epilog="Example: cheops scope explain '{image: around(paris, 10ms)}' --sites examples/sites.yaml",
)
def explain_command(
    text: ScopeArgument,
    service: Annotated[
        str | None, typer.Option(help="Explain this service only.", show_default="each the scope names")
    ] = None,
    sites: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file of sites, their services and round-trip times."),
    ] = None,
    here: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SITE",
            help="The site that receives the request.",
            show_default="the file's 'here'",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show which sites a scope selects, in which order, and what each HTTP method would do."""
    scope = _parsed(text)
    for option, name in (("--service", service), ("--from", here)):
        if name is not None and (problem := name_problem(normal(name))):
            raise ClientError(f"{option}: {problem}")
    snapshot = _snapshot(scope, service, sites, here)
    explanation = explain(scope, snapshot, service, scope_functions())

    def show(console: Console) -> None:
        console.print(_scope_tree(scope))
        console.print(f"\n{explanation.scope}", style="bold", soft_wrap=True)
        console.print(f"seen from {snapshot.here}" if snapshot.here else _NO_SITES, style="dim", soft_wrap=True)
        for explained in explanation.services:
            _show_service(console, explained)

    emit(output, explanation_data(explanation), show)


@app.command("functions")
def functions_command(output: OutputOption = Output.TABLE) -> None:
    """List the functions of the scope language, including those of installed plugins."""
    functions = sorted(scope_functions(), key=lambda function: function.name)
    data = [{"name": f.name, "signature": f.signature, "summary": f.summary} for f in functions]

    def show(console: Console) -> None:
        listing = table("FUNCTION", "RESULT")
        for function in functions:
            listing.add_row(function.signature, function.summary)
        print_table(console, listing)

    emit(output, data, show)


app.command(
    "rules",
    epilog="Example: cheops scope rules kv --try 'POST /v3/kv/put' --body '{\"key\": \"Zm9v\"}'",
)(rules_command)

_ROWS = 200
_NO_SITES = "no --sites file: every named site is assumed up, at an unknown distance"


def _parsed(text: str) -> Scope:
    if text == "-":
        raw = sys.stdin.buffer.read(4 * MAX_CHARACTERS + 1)  # as much as any scope can take in UTF-8
        text = raw.decode(errors="surrogateescape").removesuffix("\n")
    return parse(text, scope_functions())


def _snapshot(scope: Scope, service: str | None, sites: Path | None, here: str | None) -> Snapshot:
    if sites is None:
        return _named_only(scope, service, here)
    snapshot = read_sites(sites, here)
    if snapshot.here is not None and snapshot.here not in snapshot.sites:
        meant = nearest(snapshot.here, snapshot.sites)
        hint = f"Did you mean '{meant}'? " if meant else ""
        raise ClientError(f"--from: unknown site '{here}'\n  {hint}Sites of {sites}: {listed(snapshot.sites)}.")
    return snapshot


def _named_only(scope: Scope, service: str | None, here: str | None) -> Snapshot:
    """What can be known without a file: the sites and services that the scope itself names."""
    services = frozenset(binding.service for binding in scope.bindings if binding.service is not None)
    if service is not None:
        services |= {service}
    names = [site for binding in scope.bindings for site in sites_in(binding.location)]
    return Snapshot(here, {name: SiteInfo(name, services) for name in [*names, *filter(None, [here])]})


def _scope_tree(scope: Scope) -> Tree:
    if scope.is_bare:
        return _node_tree(scope.bindings[0].location)
    root = Tree(Text("scope", style="bold"))
    for binding in scope.bindings:
        root.add(Text(str(binding.service), style="cyan")).add(_node_tree(binding.location))
    return root


_OPERATOR_WORDS = {And: "& replicated at", Across: "% spanning", Otherwise: "; the first that works of"}


def _node_tree(node: Argument) -> Tree:
    match node:
        case At(site):
            return Tree(Text(site, style="green"))
        case And(parts) | Across(parts) | Otherwise(parts):
            return _branch(_OPERATOR_WORDS[type(node)], parts)
        case Call(function, arguments):
            return _branch(f"{function}( )", arguments)
        case _:
            return Tree(Text(str(node), style="magenta"))


def _branch(label: str, children: tuple[Argument, ...]) -> Tree:
    tree = Tree(Text(label))
    for child in children:
        tree.add(_node_tree(child))
    return tree


def _show_service(console: Console, explained: ServiceExplanation) -> None:
    heading = f"\n{explained.service or 'any service'}: {explained.location}"
    console.print(heading, style="bold cyan", soft_wrap=True)
    if explained.means != explained.location:
        console.print(f"means  {explained.means}", soft_wrap=True)
    console.print(f"route  {_route_words(explained.route)}")
    console.print()
    sites = table("SITE", "ROLE", "STATE", "RTT")
    for site in explained.sites[:_ROWS]:
        state = Text("up", style="green") if site.up else Text("down", style="red")
        sites.add_row(site.site, site.role, state, milliseconds(site.rtt_ms))
    print_table(console, sites)
    if len(explained.sites) > _ROWS:
        console.print(f"… and {len(explained.sites) - _ROWS:,} more; -o json lists them all")
    console.print()
    methods = table("METHOD", "LATENCY", "EFFECT")
    for effect in explained.effects:
        answered = milliseconds(effect.latency_ms) if effect.sites else "-"
        methods.add_row(effect.method.value, answered, effect.does)
    print_table(console, methods)
    for note in explained.notes:
        console.print(f"note: {note}", style="yellow")


def _route_words(route: Route) -> str:
    match route:
        case One():
            return "one site"
        case Replicas(sites, consistency):
            return f"{len(sites)} replicas, consistency: {consistency}"
        case Fallback(alternatives):
            return f"the first that works of {len(alternatives)}"
        case _:
            return f"{len(route.parts)} parts, which are read as one"
