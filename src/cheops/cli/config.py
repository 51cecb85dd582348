"""`cheops init` and `cheops config …`: write and check the configuration file of a site. Nothing is started.

The output contains no secrets: neither the path of a webhook's URL nor the arguments of a command.
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console

from cheops.cli.output import Output, OutputOption, console, emit, print_table, table
from cheops.config.address import DEFAULT_LISTEN, AddressError, address_of_url, is_loopback, parse_address, parse_url
from cheops.config.notify import SELECTABLE_EVENTS, Channel, CommandConfig, MailConfig, TargetConfig, WebhookConfig
from cheops.config.security import DEFAULT_FOLDER, NONE, SecurityConfig
from cheops.config.services import ServiceConfig
from cheops.config.settings import default_of
from cheops.config.site import DEFAULT_FILE, SiteConfig, parse_site, read_site
from cheops.config.template import site_file
from cheops.config.types import TypeConfig
from cheops.errors import ClientError
from cheops.log.matrix import Matrix
from cheops.scope.names import name_problem, normal
from cheops.text import in_words, printable
from cheops.yaml_file import YamlFileError

_REST = "…"  # in place of what may be a secret
_FILTERS = ("types", "operations", "resources", "statuses")


def _target_data(target: TargetConfig) -> dict[str, Any]:
    kind, about = _channel(target.channel)
    return {
        kind: about,
        "on": [event.value for event in target.on],
        "summary": target.summary,
        "others": target.others,
        **{name: [str(one) for one in getattr(target, name)] for name in _FILTERS},
        "timeout_s": target.timeout_s,
        "retry_most_s": target.retry_most_s,
    }


def _target_facts(target: TargetConfig) -> Iterator[tuple[str, str]]:
    kind, about = _channel(target.channel)
    yield kind, _channel_text(about)
    yield "events", _events_text(target)
    for name in _FILTERS:
        if wanted := getattr(target, name):
            yield f"only {name}", printable(", ".join(map(str, wanted)))
    if any(getattr(target, name) != default_of(TargetConfig, name) for name in ("timeout_s", "retry_most_s")):
        yield "attempts", f"up to {target.timeout_s:g} s each, repeated at least every {target.retry_most_s:g} s"


def _channel(channel: Channel) -> tuple[str, dict[str, Any]]:
    match channel:
        case WebhookConfig():
            return "webhook", {"url": _origin(channel.url), "signed": channel.secret_file is not None}
        case CommandConfig():
            program, *more = shlex.split(channel.line)
            return "command", {"line": f"{program} {_REST}" if more else program}
        case MailConfig():
            return "mail", {
                "to": list(channel.to),
                "from": channel.sender,
                "smtp": str(channel.smtp),
                "starttls": channel.starttls,
                "user": channel.user,
            }


def _origin(url: str) -> str:
    """A URL without the part after its host, which may be a secret."""
    parts = urlsplit(url)
    more = parts.path.strip("/") or parts.query
    return f"{parts.scheme}://{parts.netloc}/{_REST}" if more else url


def _channel_text(about: dict[str, Any]) -> str:
    if "url" in about:
        return f"{about['url']}, {'signed' if about['signed'] else 'not signed'}"
    if "smtp" not in about:
        return printable(about["line"])
    way = "with STARTTLS" if about["starttls"] else "not encrypted"
    user = f", as {printable(about['user'])}" if about["user"] else ""
    return f"{', '.join(about['to'])} from {about['from']} by {about['smtp']} ({way}{user})"


def _events_text(target: TargetConfig) -> str:
    parts = ["a summary of each operation"] if target.summary else []
    if target.on == SELECTABLE_EVENTS:
        parts.append("all")
    elif target.on:
        parts.append(", ".join(event.value for event in target.on))
    if target.others:
        parts.append("also those of other sites")
    return "; ".join(parts)


app = typer.Typer(no_args_is_help=True)


@app.command("check", epilog="Example: cheops config check examples/site.yaml")
def check_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file of a site.")] = DEFAULT_FILE,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a configuration file and show what it configures. Nothing is started.

    Exit code: 0 if an agent can work with it on this machine, 1 if not.
    """
    config = read_site(file)
    problems = list(config.problems())
    emit(output, _config_data(config, problems), lambda console: _show_config(console, config, problems))
    if problems:
        raise typer.Exit(1)


def _config_data(config: SiteConfig, problems: list[str]) -> dict[str, Any]:
    return {
        "site": config.name,
        "listen": str(config.listen),
        "advertise": config.advertise,
        "security": _security_data(config.security),
        "data": str(config.data),
        "peers": config.peers,
        "services": {name: _service_data(service) for name, service in config.services.items()},
        "types": {name: _type_data(type_) for name, type_ in config.types.items()},
        "limits": asdict(config.limits),
        "heartbeat": asdict(config.heartbeat),
        "notify": {target.name: _target_data(target) for target in config.notify},
        "errors": problems,
        "warnings": list(config.warnings),
        "hints": _hints(config),
    }


def _security_data(security: SecurityConfig) -> dict[str, Any] | str | None:
    if not security.is_on:
        return NONE if security.is_specified else None
    settings = asdict(security)
    return {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}


def _security_text(security: SecurityConfig) -> str:
    if security.folder is None:
        return "plain HTTP, on this machine only" if security.is_specified else "not specified"
    issues = "; this site admits others" if security.ca_key else ""
    return f"mutual TLS, certificates in {_relative(security.folder)}{issues}"


def _hints(config: SiteConfig) -> list[str]:
    return [f"types.{name}: {hint}" for name, type_ in config.types.items() for hint in type_.hints()]


def _type_data(type_: TypeConfig) -> dict[str, Any]:
    settings = asdict(type_.command)
    return {
        "matrix": {"types": list(type_.matrix.types), "hash": type_.matrix.hash},
        "commands": dict(type_.written_commands()),
        "on_error": type_.on_error,
        "logic": type_.logic,
        "parallel": type_.parallel,
        "checkpoint_after": type_.checkpoint.after if type_.checkpoint else None,
        **settings,
        "allow": list(type_.command.allow),
        "show": None if type_.show is None else list(type_.show),
        "cwd": str(type_.command.cwd) if type_.command.cwd else None,
    }


def _show_config(out: Console, config: SiteConfig, problems: list[str]) -> None:
    verdict = "cannot be used" if problems else "is valid"
    out.print(f"{_relative(config.source)} {verdict} ({config.name})\n", style="bold", soft_wrap=True)
    facts = table("SETTING", "VALUE")
    facts.add_row("listens at", str(config.listen))
    facts.add_row("reached at", config.advertise)
    facts.add_row("security", _security_text(config.security))
    facts.add_row("data directory", _relative(config.data))
    beat = config.heartbeat
    facts.add_row("heartbeat", f"every {beat.every_s:g} s; down after {beat.down_after_s:g} s")
    print_table(out, facts)
    _show_addresses(out, "PEER", config.peers)
    _show_addresses(out, "SERVICE", {name: service.url for name, service in config.services.items()})
    _show_named(out, "GATEWAY", {name: _service_facts(config, one) for name, one in config.services.items()})
    _show_named(out, "TYPE", {name: _type_facts(type_) for name, type_ in config.types.items()})
    _show_named(out, "TARGET", {target.name: _target_facts(target) for target in config.notify})
    hints = _hints(config)
    if problems or config.warnings or hints:
        out.print()
    for problem in problems:
        out.print(f"error: {problem}", style="red", soft_wrap=True)
    for warning in config.warnings:
        out.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    for hint in hints:
        out.print(f"hint: {hint}", style="dim", soft_wrap=True)


def _show_addresses(out: Console, heading: str, urls: dict[str, str]) -> None:
    if urls:
        listing = table(heading, "URL")
        for name, url in urls.items():
            listing.add_row(name, url)
        out.print()
        print_table(out, listing)


def _show_named(out: Console, heading: str, named: Mapping[str, Iterable[tuple[str, str]]]) -> None:
    """Settings by name, with the name beside the first setting only."""
    named = {name: tuple(facts) for name, facts in named.items()}
    if not any(named.values()):
        return
    out.print()
    listing = table(heading, "SETTING", "VALUE")
    for name, facts in named.items():
        for number, (setting, value) in enumerate(facts):
            listing.add_row(name if number == 0 else "", setting, value)
    print_table(out, listing)


def _service_data(service: ServiceConfig) -> dict[str, Any]:
    listener = service.listener
    return {
        "url": service.url,
        "listen": str(listener.listen) if listener.listen else None,
        "advertise": listener.advertise or None,
        "outbound": str(listener.outbound) if listener.outbound else None,
        "hosts": list(service.hosts),
        "carriers": list(listener.carriers),
        "add_carrier": listener.add_carrier,
    }


def _service_facts(config: SiteConfig, service: ServiceConfig) -> list[tuple[str, str]]:
    """Where requests for it arrive, and with whose rights changes run."""
    listener, rules = service.listener, service.replication
    facts = []
    if listener.listen:
        others = dict(config.service_urls)[service.name]
        facts += [
            ("for clients", f"https://{listener.listen}" if listener.tls else str(listener.listen)),
            ("for other sites", others or "none: there is no gateway.listen"),
        ]
    if listener.outbound:
        facts.append(("for the application", str(listener.outbound)))
    if listener.listen:
        rights = rules.replicate_as if rules.auth else "without credentials: there is no 'auth'"
        allow = "every change" if rules.allow is None else ", ".join(map(str, rules.allow)) or "nothing"
        facts += [("forward", rules.forward), ("replicate_as", rights), ("allow", allow)]
    if found := list(rules.rules):
        sets = f", with those of {in_words(rules.rules.names)}" if rules.rules.names else ""
        facts.append(("rules", f"{len(found)}{sets}: cheops scope rules {service.name}"))
    return facts


def _type_facts(type_: TypeConfig) -> list[tuple[str, str]]:
    """The most important settings: the matrix, which commands may run, and what happens when."""
    facts = [("matrix", _matrix_text(type_.matrix)), ("allow", ", ".join(type_.command.allow) or "nothing")]
    if type_.show is not None:
        facts.append(("show", ", ".join(type_.show) or ("only 'read'" if type_.read else "nothing")))
    facts += type_.written_commands()
    if type_.checkpoint:
        facts.append(("checkpoint.after", str(type_.checkpoint.after)))
    if type_.on_error and not type_.engine.on_error:  # a command is among those that are written
        facts.append(("on_error", type_.on_error))
    if type_.logic:
        facts.append(("logic", type_.logic))
    if type_.parallel:
        facts.append(("parallel", "true"))
    return facts


def _matrix_text(matrix: Matrix) -> str:
    words = [f"{name} replaces {', '.join(matrix.wiped_by(name)) or 'nothing'}" for name in matrix.types]
    return "; ".join(words) or "none: all operations are ordered"


def _relative(path: Path) -> str:
    """A path as a user would type it from the current directory."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)


def init_command(  # noqa: PLR0913, PLR0917 - one per option
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = DEFAULT_FILE,
    site: Annotated[str, typer.Option(metavar="NAME", help="The name of the site.")] = "site1",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where its agent listens.")] = str(DEFAULT_LISTEN),
    advertise: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where others reach it.", show_default="from --listen"),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="Another site; repeat for each.", show_default="none"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a first configuration file for a site, valid and with comments."""
    text = _new_file(site, listen, advertise, peer or [])
    config = _check_together(text, file)
    _write_file(file, text, force=force)
    out = console()
    out.print(f"wrote {file}", style="green", soft_wrap=True)
    out.print("Next:", style="bold")
    for number, step in enumerate(_next_steps(config, shlex.quote(str(file))), 1):
        out.print(f"  {number}. {step}", soft_wrap=True)


def _next_steps(config: SiteConfig, file: str) -> Iterator[str]:
    yield "Edit the file: list your types of resources, and the commands that they allow."
    yield f"cheops config check {file}"
    folder = config.security.folder
    if folder:
        host = address_of_url(config.advertise).host
        issue = f"cheops ca issue {config.name} --ca ca --address {host} --folder {shlex.quote(str(folder))}"
        yield f"cheops ca init ca && {issue}   (docs/certificates.md)"
    yield f"cheops agent --config {file}"
    if folder:
        yield "For each other site: 'cheops site invite NAME' here, then 'cheops site join' there."
    else:
        yield "For each other site on this machine: 'cheops init' with its own --site and --listen."


def _new_file(site: str, listen: str, advertise: str | None, peers: list[str]) -> str:
    if problem := name_problem(normal(site)):
        raise ClientError(f"--site: {problem}")
    try:
        address = parse_address(listen)
    except AddressError as error:
        raise ClientError(f"--listen: {error}") from None
    url = _url_option("--advertise", advertise) if advertise is not None else None
    others = _peer_options(peers)
    urls = [*others.values(), *([url] if url else [])]
    is_here = not address.is_wildcard and all(is_loopback(one) for one in (address.url, *urls))
    return site_file(normal(site), address, url, others, None if is_here else DEFAULT_FOLDER)


def _peer_options(options: list[str]) -> dict[str, str]:
    peers: dict[str, str] = {}
    for option in options:
        name, sign, url = option.partition("=")
        name = normal(name.strip())
        if not sign:
            raise ClientError(f"--peer {option}: expected NAME=URL, such as site2=https://10.0.0.2:8079")
        if problem := name_problem(name):
            raise ClientError(f"--peer {option}: {problem}")
        if name in peers:
            raise ClientError(f"--peer {option}: '{name}' is given twice")
        peers[name] = _url_option(f"--peer {name}", url)
    return peers


def _url_option(option: str, text: str) -> str:
    try:
        return parse_url(text.strip())
    except AddressError as error:
        raise ClientError(f"{option}: {error}") from None


def _check_together(text: str, file: Path) -> SiteConfig:
    """Each option by itself is valid; refuse options that contradict each other."""
    try:
        return parse_site(text, file)
    except YamlFileError as error:
        raise ClientError(f"nothing was written, because the file would not be valid\n  {error}") from None


def _write_file(file: Path, text: str, *, force: bool) -> None:
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ClientError(f"{file} exists already; use --force to overwrite it") from None
    except OSError as error:
        raise ClientError(f"{file}: {(error.strerror or str(error)).lower()}") from None
