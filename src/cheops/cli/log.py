"""`cheops log` and `cheops explain`: what happened to a resource, and why its state is what it is."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from cheops.cli.asking import IdArgument, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit_answer, print_table, table
from cheops.cli.words import coloured, moment, one_line, vector
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import Explanation, LogView, Mark, OperationView, ReplyView

_MARKS = {  # the sign, its colour, and what it means
    "OK": ("●", "green", "ran"),
    "KO": ("✗", "red", "failed"),
    "UNKNOWN": ("?", "red", "not known whether it ran"),
    "RUNNING": ("►", "yellow", "runs now"),
    "PENDING": ("○", "yellow", "heard of it, not run yet"),
}
_UNHEARD = ("·", "dim", "not known to have heard of it")
_RAN_IN_VAIN = ("◌", "dim", "ran, and lost its effect")
_NOT_RUN = ("-", "dim", "heard of it, need not run it")


def log_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the operations on a resource: a lane per site, and what superseded what by which rule."""
    found = agent(url).log(id_)
    emit_answer(output, found, lambda out: draw_log(out, found, wide=output is Output.WIDE))


def explain_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Explain step by step why the state of a resource is what it is, and what to do about it."""
    found = agent(url).explain(id_)
    emit_answer(output, found, lambda out: draw_explanation(out, found))


def draw_log(out: Console, found: "LogView", *, wide: bool = False) -> None:
    more = ("MADE AT", "COMMAND") if wide else ()
    made = table("OPERATION", "TYPE", *more, *(lane.site for lane in found.lanes), "EFFECT")
    places = {name: number for number, name in enumerate(found.effective, 1)}
    used = set()
    for number, op in enumerate(found.operations):
        replies = {reply.site: reply for reply in op.replies}
        signs = [_sign(lane.marks[number], replies.get(lane.site)) for lane in found.lanes]
        used.update(signs)
        cells = [Text(sign, style=style) for sign, style, _ in signs]
        extra = [moment(op.made_at), one_line(op.command, 100)] if wide else []
        made.add_row(op.id, printable(op.type), *extra, *cells, _effect(op, places.get(op.id)))
    print_table(out, made)
    _draw_notes(out, found)
    if used:
        meanings = {f"{sign} {meaning}" for sign, _, meaning in used}
        out.print("\n" + "   ".join(sorted(meanings)), style="dim", soft_wrap=True)


def _draw_notes(out: Console, found: "LogView") -> None:
    if found.checkpoint:
        out.print(f"\na checkpoint holds all up to {vector(found.checkpoint)}", soft_wrap=True)
    if found.forgotten:
        out.print(f"operations without effect may be forgotten up to {vector(found.forgotten)}")


def _sign(mark: "Mark", reply: "ReplyView | None") -> tuple[str, str, str]:
    """What a lane has for an operation. What lost its effect may have run before, or not at all."""
    if mark.status == "VOID" and reply and reply.at:
        return _MARKS["KO"]
    if mark.status in ("SUPERSEDED", "VOID"):
        ran = reply is not None and reply.at is not None
        return _RAN_IN_VAIN if ran else _NOT_RUN if mark.knows else _UNHEARD
    return _MARKS[mark.status] if mark.knows or mark.status != "PENDING" else _UNHEARD


def _effect(op: "OperationView", place: int | None) -> Text:
    """What it counts for; of what does not count, what beat it and by which rule."""
    said = coloured(op.effect)
    if place is not None:
        return said.append(f", number {place}")
    if op.beaten_by:
        said.append(f" by {op.beaten_by}")
    if op.rule is not None:
        said.append(f": {op.sentence} (rule {op.rule})")
    return said.append(f": {one_line(op.why, 100)}") if op.why else said


def draw_explanation(out: Console, found: "Explanation") -> None:
    width = len(str(len(found.steps)))
    for number, step in enumerate(found.steps, 1):
        out.print(Text.assemble((f"{number:>{width}}. ", "dim"), printable(step.text)), soft_wrap=True)
    out.print()
    verdict, _, rest = printable(found.conclusion).partition(":")
    out.print(Text.assemble(coloured(verdict), f":{rest}" if rest else ""), soft_wrap=True)
