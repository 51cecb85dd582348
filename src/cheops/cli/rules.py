"""`cheops scope rules …`: what a request to a service is about, by its rules. Nothing is executed."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cheops.cli.output import Output, OutputOption, emit, print_table, table
from cheops.config.site import DEFAULT_FILE, read_site
from cheops.errors import ClientError
from cheops.text import listed, nearest


def rules_command(
    service: Annotated[str, typer.Argument(metavar="SERVICE", show_default=False, help="A service of this site.")],
    request: Annotated[
        str,
        typer.Option(
            "--try", metavar="REQUEST", help="A request: POST /v3/kv/put, with its query.", show_default=False
        ),
    ] = "",
    body: Annotated[
        str, typer.Option(metavar="TEXT", help="Its body, if its rule is about a member of it.", show_default=False)
    ] = "",
    config: Annotated[Path, typer.Option(help="The configuration file of the site.")] = DEFAULT_FILE,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the rules of a service, or say what they make of a request: the rule, the resource and the operation."""
    site = read_site(config)
    if service not in site.services:
        meant = nearest(service, site.services)
        hint = f"Did you mean '{meant}'? " if meant else ""
        raise ClientError(f"{config} has no service '{service}'\n  {hint}Services: {listed(site.services) or 'none'}.")
    rules = site.services[service].replication.rules
    if request:
        data = _explained(service, request, body, config)
        emit(output, data, lambda console: _show(console, data))
        return
    rows = [{"match": str(one), "is": f"{one.kind.value} {one.part}".strip(), "of": one.of} for one in rules]

    def show(console: Console) -> None:
        listing = table("MATCH", "IS", "OF")
        for row in rows:
            listing.add_row(
                row["match"], row["is"], row["of"] or ("" if row["is"] in ("read", "refuse") else "its path")
            )
        if rows:
            print_table(console, listing)
        else:
            console.print(f"{service} has no rules: its requests are plain REST", soft_wrap=True)

    emit(output, rows, show)


def _explained(service: str, request: str, body: str, config: Path) -> dict[str, Any]:
    from cheops.backends.http.interpretation import meaning_of, rule_about_body  # noqa: PLC0415 - slow to import

    settings = read_site(config).services[service].replication
    method, _, target = request.strip().partition(" ")
    if not method.isupper() or not target.strip().startswith("/"):
        raise ClientError(f"--try: expected a method and a path, such as 'POST /v3/kv/put', found '{request}'")
    target = target.strip()
    if (about := rule_about_body(settings.rules, method, target)) and not body:
        raise ClientError(f"'{about}' is about a member of the body: give one with --body")
    headers = (("Content-Type", "application/json"),)
    meaning = meaning_of(settings.rules, method, target, headers, body.encode())
    if meaning is None:
        return {
            "request": f"{method} {target}",
            "rule": None,
            "meaning": _plain(method, target, settings.rules.is_whole),
        }
    data: dict[str, Any] = {"request": f"{method} {target}", "rule": str(meaning.rule), "does": meaning.kind.value}
    if meaning.kind.value == "refuse" and meaning.rule:
        return {**data, "meaning": f"with '&', and for what is replicated, it is refused (422): {meaning.rule.why}"}
    if meaning.kind.value == "read":
        return {**data, "meaning": "it changes nothing: it goes to one site, and is not logged"}
    name = meaning.item or "an id that the service gives"
    return {
        **data,
        "resource": "the whole service" if meaning.item == "/" else name,
        "id": meaning.meta_id(service) if meaning.item else None,
        "moved to": meaning.to or None,
        "operation": meaning.type,
        "replaces": list(settings.matrix.wiped_by(meaning.type)),
    }


def _plain(method: str, target: str, is_whole: bool) -> str:
    if method in ("GET", "HEAD", "OPTIONS"):
        return "plain REST: it reads"
    if is_whole:
        return "no rule explains it, and everything that this service does has one order: with '&' it is refused (422)"
    if "?" in target and method != "POST":
        return "no rule explains its query: with '&', and for what is replicated, it is refused (422)"
    kinds = {
        "POST": "plain REST: it creates something in this collection, with an id in the response; below a replicant, "
        "an action on it",
        "PUT": "plain REST: it replaces what is at this path",
        "PATCH": "plain REST: it changes members of what is at this path",
        "DELETE": "plain REST: it deletes what is at this path",
    }
    return kinds.get(method, "plain REST: it is ordered with all other changes of what is at this path")


def _show(console: Console, data: dict[str, Any]) -> None:
    for key in ("rule", "does", "resource", "moved to", "id", "operation"):
        if data.get(key):
            console.print(f"{key:<10} {data[key]}", soft_wrap=True, highlight=False)
    if data.get("replaces"):
        console.print(f"{'replaces':<10} {', '.join(data['replaces'])}", soft_wrap=True, highlight=False)
    if data.get("meaning"):
        console.print(data["meaning"], soft_wrap=True, highlight=False)
