"""`cheops scope rules …`: what a request to a service is about, by its rules. Nothing is executed."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cheops.cli.output import Output, OutputOption, emit, print_table, table
from cheops.config.services import ServiceConfig
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
    if config == DEFAULT_FILE and not config.exists():
        raise ClientError(f"{config}: no such file or directory. Name the configuration file of a site: --config FILE")
    site = read_site(config)
    if service not in site.services:
        meant = nearest(service, site.services)
        hint = f"Did you mean '{meant}'? " if meant else ""
        raise ClientError(f"{config} has no service '{service}'\n  {hint}Services: {listed(site.services) or 'none'}.")
    rules = site.services[service].replication.rules
    if request:
        data = _explained(site.services[service], request, body)
        emit(output, data, lambda console: _show(console, data))
        return
    from cheops.backends.http.explanation import rule_does  # noqa: PLC0415 - slow to import

    rows = [{"match": str(one), "is": rule_does(one), "of": one.of} for one in rules]

    def show(console: Console) -> None:
        listing = table("MATCH", "IS", "OF")
        for row in rows:
            has_path = row["is"].partition(" ")[0] in ("create", "put", "patch", "delete", "move", "refuse")
            listing.add_row(row["match"], row["is"], row["of"] or ("its path" if has_path else ""))
        if rows:
            print_table(console, listing)
        else:
            console.print(f"{service} has no rules: its requests are plain REST", soft_wrap=True)

    emit(output, rows, show)


def _explained(service: ServiceConfig, request: str, body: str) -> dict[str, Any]:
    from cheops.backends.http.explanation import explained  # noqa: PLC0415 - slow to import
    from cheops.backends.http.interpretation import meaning_of, rule_about_body  # noqa: PLC0415 - slow to import
    from cheops.gateway.headers import RequestHead  # noqa: PLC0415 - slow to import

    rules = service.replication.rules
    method, _, target = request.strip().partition(" ")
    if not method.isupper() or not target.strip().startswith("/"):
        raise ClientError(f"--try: expected a method and a path, such as 'POST /v3/kv/put', found '{request}'")
    head = RequestHead(method, target.strip(), (("Content-Type", "application/json"),))
    if (about := rule_about_body(rules, method, head.target, head.headers)) and not body:
        raise ClientError(f"'{about}' is about a member of the body: give one with --body")
    meaning = meaning_of(rules, method, head.target, head.headers, body.encode())
    return explained(service, head, meaning, body=body.encode())


def _show(console: Console, data: dict[str, Any]) -> None:
    for key in ("rule", "does", "resource", "moved to", "id", "operation"):
        if data.get(key):
            console.print(f"{key:<10} {data[key]}", soft_wrap=True, highlight=False)
    for key in ("replaces", "after"):
        if data.get(key):
            console.print(f"{key:<10} {', '.join(data[key])}", soft_wrap=True, highlight=False)
    if data.get("meaning"):
        console.print(data["meaning"], soft_wrap=True, highlight=False)
    if data.get("refused"):
        console.print(f"with '&', it is refused: {data['refused']}", soft_wrap=True, highlight=False)
