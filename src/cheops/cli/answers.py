"""What sites answered to an operation: as lines, as an exit code, and who is still to come."""

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cheops.cli.asking import FAILED, NOT_YET
from cheops.cli.output import table
from cheops.cli.words import coloured, one_line, printable_lines
from cheops.text import in_words, printable

if TYPE_CHECKING:
    from cheops.api.models import Accepted, SiteAnswer

_BAD = ("KO", "UNKNOWN")
_OPEN = ("PENDING", "RUNNING")


def exit_code(found: "Accepted") -> int:
    if found.verdict == "VOID" or any(answer.status in _BAD for answer in found.answers):
        return FAILED
    return 0 if found.satisfied else NOT_YET


def draw_accepted(out: Console, err: Console, found: "Accepted", timeout_s: float) -> None:
    """Each answer, and on standard error who is still to come."""
    out.print(f"operation {found.operation} on {printable(found.resource)}", soft_wrap=True)
    for answer in found.answers:
        out.print(answer_line(answer), soft_wrap=True)
    for site in found.waiting_for:
        out.print(coloured("PENDING").append(f" {printable(site)}"), soft_wrap=True)
    tell_open(err, found, timeout_s)


def answer_line(answer: "SiteAnswer", *, was_awaited: bool = True) -> Text:
    """`OK      site1  hello`; an output of several lines below. Who was awaited and has not answered, has
    let the time run out."""
    shown = "TIMEOUT" if answer.status in _OPEN and was_awaited else answer.status
    line = coloured(shown).append(" " * max(8 - len(shown), 1)).append(printable(answer.site))
    text = said(answer)
    if "\n" in text:
        return line.append("".join(f"\n        {row}" for row in text.splitlines()))
    return line.append(f"  {text}" if text else "")


def said(answer: "SiteAnswer") -> str:
    """What it printed; if it went wrong, why."""
    parts = [answer.output, answer.detail] if answer.status != "OK" else [answer.output or answer.detail]
    return "\n".join(filter(None, map(printable_lines, parts)))


def tell_open(err: Console, found: "Accepted", timeout_s: float) -> None:
    """Who has not answered, and how to follow it up."""
    id_ = shlex.quote(printable(found.resource))
    if any(answer.status == "UNKNOWN" for answer in found.answers):
        err.print(
            f"nobody knows whether it ran; what to do: cheops resolve {id_}", style="red", soft_wrap=True
        )
    if found.satisfied or not found.waiting_for:
        return
    err.print(
        f"no answer from {in_words(found.waiting_for)} within {timeout_s:g} s. "
        f"{found.operation} is safe, and goes on by itself.\n"
        f"  How far it is:    cheops describe operation {id_} {found.operation}\n"
        f"  Until it is done: cheops wait {id_} --for=converged",
        style="yellow",
        soft_wrap=True,
    )


def live_table(sites: Iterable[str], answers: "dict[str, SiteAnswer]") -> Table:
    """All sites, those that have not answered included."""
    made = table("SITE", "STATUS", "TOOK", "OUTPUT")
    for site in sites:
        answer = answers.get(site)
        if answer is None:
            made.add_row(printable(site), Text("…", style="yellow"), "", "")
            continue
        took = "" if answer.took_ms is None else f"{answer.took_ms} ms"
        made.add_row(printable(site), coloured(answer.status), took, one_line(said(answer), 200))
    return made
