"""`cheops check`: is the agent well, and everything around it."""

from itertools import groupby
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.asking import FAILED, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit_answer
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import Check, Checks

_TICKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


def check_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Look at everything an agent depends on, and say what is wrong and what to do about it.

    Configuration, store, clocks, security, peers, services, backends, versions. Ends with 1 if something has
    failed.
    """
    found = agent(url).check()
    emit_answer(output, found, lambda out: draw_checks(out, found))
    raise typer.Exit(0 if found.ok else FAILED)


def draw_checks(out: Console, found: "Checks") -> None:
    for group, checks in groupby(found.checks, key=lambda check: check.group):
        out.print(group, style="bold")
        for check in checks:
            _draw(out, check)
    out.print()
    bad = sum(not check.ok for check in found.checks)
    warned = sum(check.level == "warning" for check in found.checks)
    words = f"{found.site}: {len(found.checks)} checks, {bad} failed, {warned} with a warning"
    out.print(words, style="red" if bad else "yellow" if warned else "green")


def _draw(out: Console, check: "Check") -> None:
    sign, style = _TICKS[check.level]
    detail = f": {printable(check.detail)}" if check.detail else ""
    out.print(Text.assemble("  ", (sign, style), f" {printable(check.name)}{detail}"), soft_wrap=True)
    if check.level != "ok" and check.hint:
        out.print(f"      {printable(check.hint)}", soft_wrap=True)
    if check.level != "ok" and check.anchor:
        out.print(f"      see {check.anchor}", style="dim", soft_wrap=True)
