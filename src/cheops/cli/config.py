"""`cheops config …`: look at the configuration file of a site. Nothing is started."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cheops.cli.config_notify import target_data, target_facts
from cheops.cli.output import Output, OutputOption, emit, print_table, table
from cheops.config.gateway import Front
from cheops.config.security import MISSING, NONE, SecurityConfig
from cheops.config.services import ServiceConfig
from cheops.config.site import DEFAULT_FILE, SiteConfig, read_site
from cheops.config.types import TypeConfig
from cheops.log.matrix import Matrix

app = typer.Typer(no_args_is_help=True, help="Check the configuration file of a site.")


@app.command("check", epilog="Example: cheops config check examples/site.yaml")
def check_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The configuration file of a site.")
    ] = DEFAULT_FILE,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say whether a configuration file is right, and what the site would be. Nothing is started."""
    config = read_site(file)
    emit(output, _data(config), lambda console: _show(console, config))


def _data(config: SiteConfig) -> dict[str, Any]:
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
        "notify": {target.name: target_data(target) for target in config.notify},
        "warnings": _warnings(config),
        "hints": _hints(config),
    }


def _warnings(config: SiteConfig) -> list[str]:
    return [*([] if config.security.is_said else [MISSING]), *config.warnings]


def _security_data(security: SecurityConfig) -> dict[str, Any] | str | None:
    if not security.is_on:
        return NONE if security.is_said else None
    settings = asdict(security)
    return {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}


def _security_words(security: SecurityConfig) -> str:
    if security.folder is None:
        return "plain HTTP, on this machine only" if security.is_said else "not said"
    issues = "; this site admits others" if security.ca_key else ""
    return f"mutual TLS, with the certificates in {_shown(security.folder)}{issues}"


def _hints(config: SiteConfig) -> list[str]:
    return [f"types.{name}: {hint}" for name, type_ in config.types.items() for hint in type_.hints()]


def _type_data(type_: TypeConfig) -> dict[str, Any]:
    settings = asdict(type_.command)
    return {
        "matrix": {"types": list(type_.matrix.types), "hash": type_.matrix.hash},
        "commands": dict(type_.written_commands()),
        "on_error": type_.on_error,
        "logic": type_.logic,
        "parallel": type_.engine.parallel,
        "checkpoint_after": type_.engine.checkpoint.after if type_.engine.checkpoint else None,
        **settings,
        "allow": list(type_.command.allow),
        "show": None if type_.show is None else list(type_.show),
        "cwd": str(type_.command.cwd) if type_.command.cwd else None,
    }


def _show(out: Console, config: SiteConfig) -> None:
    out.print(
        f"{_shown(config.source)} is right: this would be {config.name}\n", style="bold", soft_wrap=True
    )
    facts = table("SETTING", "VALUE")
    facts.add_row("listens at", str(config.listen))
    facts.add_row("others reach it at", config.advertise)
    facts.add_row("security", _security_words(config.security))
    facts.add_row("keeps its data in", _shown(config.data))
    beat = config.heartbeat
    facts.add_row("asks its peers every", f"{beat.every_s:g} s; down after {beat.down_after_s:g} s")
    print_table(out, facts)
    _show_addresses(out, "PEER", config.peers)
    _show_addresses(out, "SERVICE", {name: service.url for name, service in config.services.items()})
    _show_named(out, "GATEWAY", {name: _front_facts(one.front) for name, one in config.services.items()})
    _show_named(out, "TYPE", {name: _type_facts(type_) for name, type_ in config.types.items()})
    _show_named(out, "TARGET", {target.name: target_facts(target) for target in config.notify})
    hints = _hints(config)
    warnings = _warnings(config)
    if warnings or hints:
        out.print()
    for warning in warnings:
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
    """Each with its settings, its name beside the first."""
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
    front = service.front
    return {
        "url": service.url,
        "listen": str(front.listen) if front.listen else None,
        "advertise": front.advertise or None,
        "outbound": str(front.outbound) if front.outbound else None,
        "hosts": list(service.hosts),
        "carriers": list(front.carriers),
        "add_carrier": front.add_carrier,
    }


def _front_facts(front: Front) -> list[tuple[str, str]]:
    facts = []
    if front.listen:
        facts += [("for clients", str(front.listen)), ("for other sites", front.advertise)]
    if front.outbound:
        facts.append(("for the application", str(front.outbound)))
    return facts


def _type_facts(type_: TypeConfig) -> list[tuple[str, str]]:
    """What one sees at a glance: the matrix, what may be run, and what happens when."""
    facts = [("matrix", _matrix_words(type_.matrix)), ("allow", ", ".join(type_.command.allow) or "nothing")]
    if type_.show is not None:
        facts.append(("show", ", ".join(type_.show) or ("only 'read'" if type_.read else "nothing")))
    facts += type_.written_commands()
    if type_.engine.checkpoint:
        facts.append(("checkpoint.after", str(type_.engine.checkpoint.after)))
    if type_.on_error and not type_.engine.on_error:
        facts.append(("on_error", type_.on_error))
    if type_.logic:
        facts.append(("logic", type_.logic))
    if type_.engine.parallel:
        facts.append(("parallel", "true"))
    return facts


def _matrix_words(matrix: Matrix) -> str:
    words = [f"{name} replaces {', '.join(matrix.wiped_by(name)) or 'nothing'}" for name in matrix.types]
    return "; ".join(words) or "none: all operations are ordered"


def _shown(path: Path) -> str:
    """A path as one would type it from here."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
