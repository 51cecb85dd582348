"""`cheops log`, `explain`, `watch` and `audit`: what happened to a resource and why, what happens now, who did it."""

import sys
import time
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.options import FAILED, IdArgument, UrlOption, agent
from cheops.cli.output import (
    Cell,
    Output,
    OutputOption,
    as_json,
    as_yaml,
    console,
    emit_answer,
    one_line,
    print_long_table,
    print_table,
    short_time,
    style_of,
    styled_status,
    table,
    vector,
)
from cheops.log.rules import rule_text
from cheops.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cheops.api.models.operations import Explanation, LogView, Mark, OperationView, ReplyView
    from cheops.api.models.site import AuditLog
    from cheops.notify.event import Event
    from cheops.security.audit import AuditEntry


def audit_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    since: Annotated[
        str, typer.Option("--since", help="Only entries since this time, in UTC: 2026-11-16, or 2026-11-16T01:41.")
    ] = "",
    who: Annotated[str, typer.Option("--who", help="Only entries of this user, such as token:ci, or ci.")] = "",
    outcome: Annotated[
        str, typer.Option("--outcome", help="Only entries with this outcome: done, refused or failed.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="How many of the latest entries to show.")
    ] = 100,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show who changed what at a site, from where, and which requests were refused.

    Exit code: 1 if entries of the log were changed or are missing.
    """
    response = agent(url).audit(since=since, who=who, outcome=outcome, limit=limit)
    emit_answer(output, response, lambda out: draw_audit(out, response, wide=output is Output.WIDE))
    if response.broken or response.trouble:
        raise typer.Exit(FAILED)


def draw_audit(out: Console, response: "AuditLog", *, wide: bool = False) -> None:
    more = ("REASON", "LINE") if wide else ()
    rows = table("TIME", "WHO", "FROM", "OUTCOME", "WHAT", "RESOURCE", "OPERATION", *more)
    for entry in response.entries:
        extra = (printable(entry.reason) or "-", str(entry.n)) if wide else ()
        rows.add_row(
            short_time(entry.at),
            printable(entry.who),
            printable(entry.source) or "-",
            styled_status(entry.outcome),
            _what(entry, wide=wide),
            printable(entry.resource) or "-",
            entry.operation or "-",
            *extra,
        )
    if response.entries:
        print_table(out, rows)
    else:
        out.print("no matching entries")
    err = console(stderr=True)
    for problem in response.broken:
        err.print(f"the log was altered or damaged: {printable(problem)}", style="red", soft_wrap=True)
    if response.trouble:
        err.print(f"the log cannot be written: {printable(response.trouble)}", style="red", soft_wrap=True)


def _what(entry: "AuditEntry", *, wide: bool) -> str:
    times = f" ({entry.times} times)" if entry.times > 1 else ""
    why = f": {printable(entry.reason)}" if entry.reason and not wide else ""
    return f"{printable(entry.what)}{times}{why}"


_MARKS = {  # the sign, its colour, and what it means
    "OK": ("●", "green", "ran"),
    "KO": ("✗", "red", "failed"),
    "UNKNOWN": ("?", "red", "unknown whether it ran"),
    "RUNNING": ("►", "yellow", "running"),
    "PENDING": ("○", "yellow", "received, not run yet"),
}
_NOT_RECEIVED = ("·", "dim", "not received yet, as far as known")
_SUPERSEDED = ("◌", "dim", "ran, then superseded")
_NOT_RUN = ("-", "dim", "received, need not run")
_LONG = 1_000  # operations of a log beyond which its table is not measured as a whole


def log_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the operations on a resource, with one lane per site and the rule that superseded each."""
    pages = agent(url).log_pages(id_)
    if output in {Output.TABLE, Output.WIDE}:
        draw_log(console(), pages, wide=output is Output.WIDE)
    else:
        emit_answer(output, joined_pages(list(pages)), lambda _out: None)


def joined_pages(pages: "Sequence[LogView]") -> "LogView":
    """All pages of a log as one."""
    from msgspec import structs  # noqa: PLC0415 - slow to import

    first = pages[0]
    if len(pages) == 1:
        return first
    effective = sorted(chain.from_iterable(zip(page.positions, page.effective, strict=True) for page in pages))
    return structs.replace(
        first,
        effective=tuple(name for _, name in effective),
        positions=tuple(number for number, _ in effective),
        operations=tuple(chain.from_iterable(page.operations for page in pages)),
        lanes=tuple(
            structs.replace(lane, marks=tuple(chain.from_iterable(page.lanes[n].marks for page in pages)))
            for n, lane in enumerate(first.lanes)
        ),
        next=None,
    )


def explain_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Explain step by step why a resource is in its state, and what to do about it."""
    response = agent(url).explain(id_)
    emit_answer(output, response, lambda out: draw_explanation(out, response))


def draw_log(out: Console, pages: "Iterable[LogView]", *, wide: bool = False) -> None:
    rest = iter(pages)
    first = next(rest)
    more = ("MADE AT", "COMMAND") if wide else ()
    columns = ("OPERATION", "TYPE", *more, *(lane.site for lane in first.lanes), "EFFECT")
    used: set[tuple[str, str, str]] = set()
    if len(first.operations) > _LONG or first.next is not None:
        every = chain.from_iterable(_log_rows(page, used, wide=wide) for page in chain((first,), rest))
        print_long_table(out, columns, every)
    else:
        rows = table(*columns)
        for cells in _log_rows(first, used, wide=wide):
            rows.add_row(*(Text(text, style=style) for text, style in cells))
        print_table(out, rows)
    _draw_notes(out, first)
    if used:
        meanings = {f"{sign} {meaning}" for sign, _, meaning in used}
        out.print("\n" + "   ".join(sorted(meanings)), style="dim", soft_wrap=True)


def _log_rows(page: "LogView", used: set[tuple[str, str, str]], *, wide: bool) -> "Iterator[list[Cell]]":
    """The rows of the operations of a page. Their marks are added to `used`."""
    places = dict(zip(page.effective, page.positions, strict=True))
    for number, op in enumerate(page.operations):
        replies = {reply.site: reply for reply in op.replies}
        signs = [_lane_mark(lane.marks[number], replies.get(lane.site)) for lane in page.lanes]
        used.update(signs)
        cells = [(sign, style) for sign, style, _ in signs]
        extra = [(short_time(op.made_at), ""), (one_line(op.command, 100), "")] if wide else []
        yield [(op.id, ""), (printable(op.type), ""), *extra, *cells, _effect(op, places.get(op.id))]


def _draw_notes(out: Console, response: "LogView") -> None:
    if response.checkpoint:
        out.print(f"\na checkpoint contains everything up to {vector(response.checkpoint)}", soft_wrap=True)
    if response.forgotten:
        out.print(f"operations without effect may be deleted up to {vector(response.forgotten)}")


def _lane_mark(mark: "Mark", reply: "ReplyView | None") -> tuple[str, str, str]:
    """The mark of an operation in a lane. A superseded operation may have run before, or never."""
    if mark.status == "VOID" and reply and reply.at:
        return _MARKS["KO"]
    if mark.status in ("SUPERSEDED", "VOID"):
        ran = reply is not None and reply.at is not None
        return _SUPERSEDED if ran else _NOT_RUN if mark.knows else _NOT_RECEIVED
    return _MARKS[mark.status] if mark.knows or mark.status != "PENDING" else _NOT_RECEIVED


def _effect(op: "OperationView", place: int | None) -> Cell:
    """Its position in the effective order; or what superseded it, and by which rule."""
    text, style = str(op.effect), style_of(op.effect)
    if place is not None:
        return f"{text}, position {place}", style
    if op.beaten_by:
        text += f" by {op.beaten_by}"
    if op.rule is not None:
        text += f": {rule_text(op.rule, op.sentence)}"
    return (f"{text}: {one_line(op.why, 100)}" if op.why else text), style


def draw_explanation(out: Console, response: "Explanation") -> None:
    width = len(str(len(response.steps)))
    for number, step in enumerate(response.steps, 1):
        out.print(Text.assemble((f"{number:>{width}}. ", "dim"), printable(step.text)), soft_wrap=True)
    out.print()
    verdict, _, rest = printable(response.conclusion).partition(":")
    out.print(Text.assemble(styled_status(verdict), f":{rest}" if rest else ""), soft_wrap=True)


_RECONNECT_S = 1.0


def watch_command(
    id_: Annotated[
        str, typer.Argument(metavar="[ID]", show_default="all resources and sites", help="The id of the resource.")
    ] = "",
    since: Annotated[
        str, typer.Option("--since", help="Start after this position of an event.", show_default="now")
    ] = "",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the events of a resource, or of all resources and sites, until Ctrl-C.

    With -o json one event per line, with -o yaml one document per event. If the agent stops, the command reconnects
    when it is back, without missing an event.
    """
    from cheops.client import UnreachableError  # noqa: PLC0415 - slow to import

    client = agent(url)
    # The position before the stream: an event in between is then sent by the stream, and not lost.
    last = since or client.changes(id_ or None, limit=1).last
    lost = False
    while True:
        with suppress(UnreachableError):
            for event in client.events(id_ or None, last):
                last, lost = event.place, False
                _write_event(event, output)
        if not lost:
            console(stderr=True).print("lost the connection to the agent; reconnecting", style="yellow")
        lost = True
        time.sleep(_RECONNECT_S)


def _write_event(event: "Event", output: Output) -> None:
    from cheops.api.models import plain  # noqa: PLC0415 - slow to import

    match output:
        case Output.JSON:
            sys.stdout.write(as_json(plain(event)) + "\n")
        case Output.YAML:
            sys.stdout.write(f"---\n{as_yaml(plain(event))}")
        case _:
            console().print(event_line(event, wide=output is Output.WIDE), soft_wrap=True)
    sys.stdout.flush()  # a pipe has a buffer, and its reader waits for each event


def event_line(event: "Event", *, wide: bool = False) -> Text:
    """One line: time, kind, subject, status and details, as far as the event has them."""
    line = Text.assemble((short_time(event.time), "dim"), f"  {printable(event.kind):<18}")
    about = (event.resource, event.operation, event.type, ", ".join(event.sites), f"at {event.site}")
    line.append("  ".join(printable(part) for part in about if part))
    if event.status:
        line.append("  ").append(styled_status(event.status))
    for result in event.results:
        line.append(f"  {printable(result.site)} ").append(styled_status(result.status))
    if event.detail:
        line.append(f"  {printable(event.detail) if wide else one_line(event.detail, 100)}")
    if wide:
        line.append(f"  [{event.place}]", "dim")
    return line
