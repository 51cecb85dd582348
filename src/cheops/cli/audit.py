"""`cheops audit`: who did what at a site, and what was refused to whom."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cheops.cli.asking import FAILED, UrlOption, agent
from cheops.cli.output import Output, OutputOption, console, emit_answer, print_table, table
from cheops.cli.words import coloured, moment
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import AuditEntry, AuditLog


def audit_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    since: Annotated[
        str, typer.Option("--since", help="From this time on, in UTC: 2026-11-16, or 2026-11-16T01:41.")
    ] = "",
    who: Annotated[str, typer.Option("--who", help="Only of this one, such as token:ci, or ci.")] = "",
    outcome: Annotated[str, typer.Option("--outcome", help="Only done, refused or failed.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="The last so many lines.")] = 100,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show who changed what at a site, from where, and what was refused to whom.

    Ends with 1 if lines of the log were changed or are missing.
    """
    found = agent(url).audit(since=since, who=who, outcome=outcome, limit=limit)
    emit_answer(output, found, lambda out: draw_audit(out, found, wide=output is Output.WIDE))
    if found.broken or found.trouble:
        raise typer.Exit(FAILED)


def draw_audit(out: Console, found: "AuditLog", *, wide: bool = False) -> None:
    more = ("REASON", "LINE") if wide else ()
    made = table("TIME", "WHO", "FROM", "OUTCOME", "WHAT", "RESOURCE", "OPERATION", *more)
    for entry in found.entries:
        extra = (printable(entry.reason) or "-", str(entry.n)) if wide else ()
        made.add_row(
            moment(entry.at),
            printable(entry.who),
            printable(entry.source) or "-",
            coloured(entry.outcome),
            _what(entry, wide=wide),
            printable(entry.resource) or "-",
            entry.operation or "-",
            *extra,
        )
    if found.entries:
        print_table(out, made)
    else:
        out.print("nothing of that is in the log")
    err = console(stderr=True)
    for told in found.broken:
        err.print(f"the log was tampered with, or damaged: {printable(told)}", style="red", soft_wrap=True)
    if found.trouble:
        err.print(f"nothing can be added to the log: {printable(found.trouble)}", style="red", soft_wrap=True)


def _what(entry: "AuditEntry", *, wide: bool) -> str:
    times = f" ({entry.times} times)" if entry.times > 1 else ""
    why = f": {printable(entry.reason)}" if entry.reason and not wide else ""
    return f"{printable(entry.what)}{times}{why}"
