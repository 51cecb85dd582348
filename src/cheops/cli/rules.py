"""`cheops scope rules …`: what a request to a service is about, by its rules. Nothing is executed."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cheops.cli.output import Output, OutputOption, emit, print_table, table
from cheops.config.service_rules import Rule, RuleKind
from cheops.config.session_rules import SessionRole
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
    rows = [{"match": str(one), "is": _does(one), "of": one.of} for one in rules]

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


def _does(rule: Rule) -> str:
    kind = f"{rule.kind.value} {rule.part}".strip()
    if rule.step is None:
        return kind
    done = f"{rule.step.role.value} {rule.step.session}"
    return f"{kind}, {done}" if rule.step.role is SessionRole.COMPLETES else done


def _session(rule: Rule) -> str:
    """What becomes of a request of a session."""
    assert rule.step is not None  # noqa: S101 - its caller has looked
    name = rule.step.session
    texts = {
        SessionRole.OPENS: f"it opens a session '{name}', at one site: the handle is {rule.step.id} of the response. "
        "Nothing is replicated before the session is complete",
        SessionRole.USES: f"it uses a session '{name}', at the site where that is open, and is recorded. Its handle is "
        f"{{{name}}} of the rule",
        SessionRole.ABORTS: f"it aborts a session '{name}': nothing of it is replicated",
        SessionRole.COMPLETES: f"it completes a session '{name}': this is one operation. Other sites repeat the "
        "session, with handles of their own",
    }
    return texts[rule.step.role]


def _explained(service: str, request: str, body: str, config: Path) -> dict[str, Any]:
    from cheops.backends.http.interpretation import meaning_of, rule_about_body, rule_for  # noqa: PLC0415 - slow to import

    settings = read_site(config).services[service].replication
    method, _, target = request.strip().partition(" ")
    if not method.isupper() or not target.strip().startswith("/"):
        raise ClientError(f"--try: expected a method and a path, such as 'POST /v3/kv/put', found '{request}'")
    target, headers = target.strip(), (("Content-Type", "application/json"),)
    if (about := rule_about_body(settings.rules, method, target, headers)) and not body:
        raise ClientError(f"'{about}' is about a member of the body: give one with --body")
    meaning = meaning_of(settings.rules, method, target, headers, body.encode())
    if meaning is None:
        near = rule_for(settings.rules, method, target, headers, body.encode(), any_query=True)
        return {
            "request": f"{method} {target}",
            "rule": None,
            "meaning": _but_for_query(near[0]) if near else _plain(method, target, settings.rules.is_whole),
        }
    rule = meaning.rule
    assert rule is not None  # noqa: S101 - a rule says so
    data: dict[str, Any] = {"request": f"{method} {target}", "rule": str(rule), "does": meaning.kind.value}
    if rule.kind is RuleKind.SESSION:
        return {**data, "does": _does(rule), "meaning": _session(rule)}
    if rule.kind is RuleKind.REFUSE:
        return {**data, "meaning": f"with '&', and for what is replicated, it is refused (422): {rule.why}"}
    if meaning.kind is RuleKind.READ:
        return {**data, "meaning": "it changes nothing: it goes to one site, and is not logged"}
    name = meaning.item or "an id that the service gives"
    return {
        **data,
        "resource": "the whole service" if meaning.item == "/" else name,
        "id": meaning.meta_id(service) if meaning.item else None,
        "moved to": meaning.to or None,
        "operation": meaning.type,
        "replaces": list(settings.matrix.wiped_by(meaning.type)),
        **({"after": list(meaning.after)} if meaning.after else {}),
        **({"meaning": _session(rule)} if rule.step else {}),
    }


def _but_for_query(rule: Rule) -> str:
    return (
        f"'{rule}' does not list all members of its query, or one is there twice: with '&', and for what is "
        "replicated, it is refused (422)"
    )


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
    for key in ("replaces", "after"):
        if data.get(key):
            console.print(f"{key:<10} {', '.join(data[key])}", soft_wrap=True, highlight=False)
    if data.get("meaning"):
        console.print(data["meaning"], soft_wrap=True, highlight=False)
