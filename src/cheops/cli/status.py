"""`cheops status`, `wait`, `verify` and `check`: the health of a resource, of its application, and of the agent."""

import shlex
import time
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.options import FAILED, NOT_YET, IdArgument, ShowingOption, TimeoutOption, UrlOption, agent
from cheops.cli.output import (
    Output,
    OutputOption,
    age,
    emit_answer,
    one_line,
    print_table,
    printable_lines,
    styled_status,
    table,
)
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models.operations import Verification
    from cheops.api.models.resources import ResourceStatus, SiteHealth, SiteStatus
    from cheops.api.models.site import Check, Checks


_SILENT = ("TIMEOUT", "UNREACHABLE")
_TICKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


def check_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Check everything that an agent depends on, and report what to fix.

    Configuration, store, resources, clocks, security, peers, services, backends, notifications, versions.

    Exit code: 1 if a check failed.
    """
    response = agent(url).check()
    emit_answer(output, response, lambda out: draw_checks(out, response))
    raise typer.Exit(0 if response.ok else FAILED)


def draw_checks(out: Console, response: "Checks") -> None:
    for group, checks in groupby(response.checks, key=lambda check: check.group):
        out.print(group, style="bold")
        for check in checks:
            _draw_check(out, check)
    out.print()
    bad = sum(not check.ok for check in response.checks)
    warned = sum(check.level == "warning" for check in response.checks)
    words = (
        f"{response.site}: {len(response.checks)} checks, {bad} failed, {warned} warning{'' if warned == 1 else 's'}"
    )
    out.print(words, style="red" if bad else "yellow" if warned else "green")


def _draw_check(out: Console, check: "Check") -> None:
    sign, style = _TICKS[check.level]
    detail = f": {printable(check.detail)}" if check.detail else ""
    out.print(Text.assemble("  ", (sign, style), f" {printable(check.name)}{detail}"), soft_wrap=True)
    if check.level != "ok" and check.hint:
        out.print(f"      {printable(check.hint)}", soft_wrap=True)
    if check.level != "ok" and check.anchor:
        out.print(f"      see {check.anchor}", style="dim", soft_wrap=True)


_POLL_S = 0.2
_CODES = {"CONVERGED": 0, "DIVERGED": FAILED, "CONVERGING": NOT_YET, "UNREACHABLE": NOT_YET}


class Condition(StrEnum):
    CONVERGED = "converged"


def status_command(
    id_: Annotated[
        str | None, typer.Argument(metavar="[ID]", show_default="the whole site", help="The id of the resource.")
    ] = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show whether all sites of a resource are in sync, or how many resources of the site are.

    Without an id: all resources of this agent's site by their state, and the worst ten.

    Exit code: 0 if CONVERGED, 1 if DIVERGED, 3 if operations are pending, a site is unreachable, or a state is not
    known; without an id for the worst of all resources.
    """
    if id_ is None:
        health = agent(url).site_health()
        emit_answer(output, health, lambda out: draw_health(out, health))
        raise typer.Exit(health_exit_code(health))
    response = agent(url).status(id_)
    emit_answer(output, response, lambda out: draw_status(out, response, wide=output is Output.WIDE))
    raise typer.Exit(_CODES[response.overall])


def health_exit_code(health: "SiteHealth") -> int:
    states = health.states
    if states.diverged or states.order_not_enforced:
        return FAILED
    return NOT_YET if states.converging or states.unknown or health.unreachable else 0


# What the word for a state means, for those that are not in sync.
_MEANINGS = {
    "converging": "operations are pending",
    "diverged": "sites differ: fix it",
    "order_not_enforced": "operations ran out of order: fix it",
    "unknown": "not compared with all sites since this agent loaded them; nothing is known to be wrong",
}


def draw_health(out: Console, health: "SiteHealth") -> None:
    """Print how many resources are in each state, and the worst."""
    noun = "resource" if health.resources == 1 else "resources"
    out.print(f"{health.site}: {health.resources:,} {noun}", soft_wrap=True)
    rows = table("STATE", "RESOURCES", "MEANING")
    rows.add_row("converged", f"{health.states.converged:,}", "in sync when their sites last reported")
    for name, meaning in _MEANINGS.items():
        style = "red" if name in {"diverged", "order_not_enforced"} else "yellow"
        if count := getattr(health.states, name):
            rows.add_row(Text(name.replace("_", "-"), style=style), f"{count:,}", meaning)
    out.print()
    print_table(out, rows)
    out.print(f"\ndisk: {health.space.in_words()}", soft_wrap=True)
    if health.unreachable:
        names = ", ".join(map(printable, health.unreachable))
        out.print(f"\nunreachable now: {names}; what is shown there is what was last reported", soft_wrap=True)
    for one in health.worst:
        text = f"  {printable(one.id)}: {printable(one.sentence)}"
        out.print()
        out.print(Text.assemble(styled_status(one.overall), text), soft_wrap=True)
        if one.hint:
            out.print(f"  {printable(one.hint)}", style="dim", soft_wrap=True)


def wait_command(
    id_: IdArgument,
    condition: Annotated[Condition, typer.Option("--for", help="The state to wait for.")] = Condition.CONVERGED,
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait until all sites of a resource are in sync.

    Exit code: 0 as soon as they are; after the timeout 1 if DIVERGED, else 3.
    """
    response, reached = _wait_for(id_, condition, timeout, url)
    emit_answer(output, response, lambda out: draw_status(out, response, wide=output is Output.WIDE))
    # CONVERGED has code 0, but is not reached without a new report of every site.
    raise typer.Exit(0 if reached else _CODES[response.overall] or NOT_YET)


def _wait_for(id_: str, condition: Condition, timeout: float, url: str | None) -> "tuple[ResourceStatus, bool]":
    """The last status, and whether it is the one waited for."""
    client, begun_s = agent(url), time.monotonic()
    while True:
        response = client.status(id_)
        waited_s = time.monotonic() - begun_s
        reached = response.overall == condition.upper() and _all_reported(response, waited_s)
        if reached or waited_s >= timeout:
            return response, reached
        time.sleep(min(_POLL_S, timeout - waited_s))


def _all_reported(response: "ResourceStatus", within_s: float) -> bool:
    """Whether every site has reported since the wait began.

    An older report may be of a site that has since lost its disk, so it proves nothing.
    """
    return all(site.as_of_s is not None and site.as_of_s <= within_s for site in response.sites)


def draw_status(out: Console, response: "ResourceStatus", *, wide: bool = False) -> None:
    """Print the overall status, then each site."""
    out.print(
        Text.assemble(styled_status(response.overall), f"  {printable(response.id)}: {response.sentence}"),
        soft_wrap=True,
    )
    out.print()
    draw_site_states(out, response.sites, wide=wide)
    if response.order_not_enforced:
        out.print("\norder-not-enforced: operations ran here out of order", style="red")
    if response.overall == "DIVERGED":
        from cheops.api.models.resources import cure_of  # noqa: PLC0415 - slow to import, and here by now

        id_ = shlex.quote(printable(response.id))
        hint = f"reason: cheops explain {id_}   how to fix it: {cure_of(response)}"
        out.print(hint, style="dim", soft_wrap=True)


def draw_site_states(out: Console, sites: "tuple[SiteStatus, ...]", *, wide: bool) -> None:
    rows = table("SITE", "REACHABLE", "AS OF", "PENDING", "FAILED", "UNKNOWN", *(["DIGEST"] if wide else []))
    for site in sites:
        reachable = Text("yes", style="green") if site.reachable else Text("no", style="red")
        pending = "not known" if site.pending is None else str(site.pending)
        counts = (pending, _names(site.failed), _names(site.unknown))
        digest = [site.digest or "-"] if wide else []
        rows.add_row(site.site, reachable, age(site.as_of_s), *counts, *digest)
    print_table(out, rows)
    if any(site.failed or site.unknown for site in sites):
        out.print()
    for site in sites:
        for trouble in (*site.failed, *site.unknown):
            out.print(f"{site.site} {trouble.operation}: {printable(trouble.detail)}", soft_wrap=True)


def _names(troubles: "tuple[object, ...]") -> str:
    return ", ".join(str(getattr(trouble, "operation", "")) for trouble in troubles) or "-"


_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def verify_command(
    id_: IdArgument,
    command: ShowingOption = "",
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read the application's state at every site of a resource, and show the differences.

    Runs the type's read command at every site, whatever the log says. Exit code: 0 if all states are equal, 1 if they
    differ or one cannot be read, 3 if all replies are equal but a site did not reply.
    """
    response = agent(url).verify(id_, command, timeout)
    emit_answer(output, response, lambda out: draw_verification(out, response, wide=output is Output.WIDE))
    raise typer.Exit(verify_exit_code(response))


def verify_exit_code(response: "Verification") -> int:
    if response.same:
        return 0
    answered = [state for state in response.states if state.status not in _SILENT]
    agree = len({state.output for state in answered}) <= 1 and all(s.status == "OK" for s in answered)
    return NOT_YET if agree and len(answered) < len(response.states) else FAILED


def draw_verification(out: Console, response: "Verification", *, wide: bool = False) -> None:
    rows = table("SITE", "STATUS", "STATE")
    for state in response.states:
        text = printable_lines(state.output) if wide else one_line(state.output)
        rows.add_row(state.site, styled_status(state.status), text)
    print_table(out, rows)
    for site, lines in response.diff.items():
        out.print(f"\ndifferences of {site} from {response.states[0].site}:", style="bold")
        for line in lines:
            out.print(Text(printable(line.rstrip("\n")), _DIFF_STYLES.get(line[:1], "")), soft_wrap=True)
    out.print()
    out.print(_verify_verdict(response), style="green" if response.same else "red", soft_wrap=True)


def _verify_verdict(response: "Verification") -> str:
    if response.same:
        sites = [state.site for state in response.states]
        if len(sites) == 1:
            return f"only at {sites[0]}"
        return "equal at both sites" if len(sites) == 2 else f"equal at all {len(sites)} sites"
    silent = [state.site for state in response.states if state.status in _SILENT]
    if verify_exit_code(response) == NOT_YET:
        replied = [state.site for state in response.states if state.status not in _SILENT]
        if len(replied) < 2:
            return f"no reply from {', '.join(silent)}: nothing was compared"
        return f"no reply from {', '.join(silent)}; the others are equal"
    id_ = shlex.quote(printable(response.resource))
    unread = [state.site for state in response.states if state.status not in ("OK", *_SILENT)]
    if len(unread) + len(silent) == len(response.states):
        return (
            f"the state of no site could be read, so nothing was compared: see STATE. cheops status {id_} says whether "
            "the resource is deleted"
        )
    return (
        f"the sites differ; reason: cheops explain {id_}\n"
        "  If that says CONVERGED, something other than Cheops changed the application. To make the sites equal again: "
        f"cheops repair {id_}"
    )
