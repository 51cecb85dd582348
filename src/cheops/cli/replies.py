"""The replies of sites to an operation: as lines, as a live table on a terminal, and as an exit code."""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from cheops.api.models import Accepted, SiteAnswer
from cheops.cli.options import FAILED, NOT_YET, Waiting
from cheops.cli.output import one_line, printable_lines, styled_status, table
from cheops.client import Agent
from cheops.errors import CheopsError, Fault
from cheops.log.operation import Status, Verdict
from cheops.text import in_words, printable

_BAD = ("KO", "UNKNOWN")
_UNFINISHED = ("PENDING", "RUNNING")


def exit_code(found: "Accepted") -> int:
    if found.verdict == "VOID" or any(answer.status in _BAD for answer in found.answers):
        return FAILED
    return 0 if found.satisfied else NOT_YET


def draw_accepted(out: Console, err: Console, found: "Accepted", timeout_s: float) -> None:
    """Each answer, and on standard error who is still to come."""
    out.print(f"operation {found.operation} on {printable(found.resource)}", soft_wrap=True)
    for answer in found.answers:
        out.print(reply_line(answer), soft_wrap=True)
    for site in found.waiting_for:
        out.print(styled_status("PENDING").append(f" {printable(site)}"), soft_wrap=True)
    print_missing(err, found, timeout_s)


def reply_line(answer: "SiteAnswer", *, was_awaited: bool = True) -> Text:
    """`OK      site1  hello`; an output of several lines below. Who was awaited and has not answered, has
    let the time run out."""
    shown = "TIMEOUT" if answer.status in _UNFINISHED and was_awaited else answer.status
    line = styled_status(shown).append(" " * max(8 - len(shown), 1)).append(printable(answer.site))
    text = reply_text(answer)
    if "\n" in text:
        return line.append("".join(f"\n        {row}" for row in text.splitlines()))
    return line.append(f"  {text}" if text else "")


def reply_text(answer: "SiteAnswer") -> str:
    """What it printed; if it went wrong, why."""
    parts = [answer.output, answer.detail] if answer.status != "OK" else [answer.output or answer.detail]
    return "\n".join(filter(None, map(printable_lines, parts)))


def print_missing(err: Console, found: "Accepted", timeout_s: float) -> None:
    """Who has not answered, and how to follow it up."""
    id_ = shlex.quote(printable(found.resource))
    if any(answer.status == "UNKNOWN" for answer in found.answers):
        err.print(f"it is unknown whether it ran; to resolve it: cheops resolve {id_}", style="red", soft_wrap=True)
    if found.satisfied or not found.waiting_for:
        return
    err.print(
        f"no reply from {in_words(found.waiting_for)} within {timeout_s:g} s. "
        f"{found.operation} is saved; delivery continues in the background.\n"
        f"  Progress:            cheops describe operation {id_} {found.operation}\n"
        f"  Wait for completion: cheops wait {id_} --for=converged",
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
        made.add_row(printable(site), styled_status(answer.status), took, one_line(reply_text(answer), 200))
    return made


_NO_REPLY = (Status.PENDING, Status.RUNNING)
_VERDICTS = {Status.KO: Verdict.VOID, Status.SUPERSEDED: Verdict.SUPERSEDED, Status.OK: Verdict.OK}
_PLAIN_SITES = re.compile(r'[^;%+(){},"&]+(&[^;%+(){},"&]+)*')


class ConnectionLostError(CheopsError):
    """The agent went away while it answered: the rest of its answer is lost, and perhaps the operation."""

    fault = Fault.PEER
    definite = False


def named_sites(sites: str) -> tuple[str, ...]:
    """The names that `a & b` joins; none if it says more than that."""
    plain = _PLAIN_SITES.fullmatch(sites)
    return tuple(name.strip() for name in sites.split("&")) if plain else ()


def expected_sites(agent: Agent, id_: str, sites: str) -> tuple[str, ...]:
    """Who will answer, as far as that can be said beforehand; only for the eye."""
    try:
        return named_sites(sites) or tuple(site.site for site in agent.status(id_, fresh_s=0).sites)
    except CheopsError:
        return ()  # it will show


class Follower:
    """Takes what is sent and answered, and draws it."""

    def __init__(self, out: Console, files: dict[str, Path], expected: Sequence[str], wait: Waiting) -> None:
        self._out = out
        self._wait = wait
        self._answers: dict[str, SiteAnswer] = {}
        self._expected = tuple(expected)
        self._left = sum(path.stat().st_size for path in files.values())
        self._live: Live | None = None
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self._out.is_terminal and self._left:
            columns = (TextColumn("upload"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, console=self._out, transient=True)
            self._bar.add_task("", total=self._left)
            self._bar.start()
        elif self._out.is_terminal:
            self._watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for shown in (self._bar, self._live):
            if shown:
                shown.stop()
        if self._out.is_terminal:
            for answer in self._answers.values():
                self._print(answer)

    def sent(self, size: int) -> None:
        """So many bytes more are on their way; the last ones end the bar."""
        if self._bar is None:
            return
        self._left -= size
        self._bar.advance(self._bar.task_ids[0], size)
        if self._left <= 0:
            self._bar.stop()
            self._bar = None
            self._watch()

    def _watch(self) -> None:
        self._live = Live(self._table(), console=self._out, transient=True, auto_refresh=False)
        self._live.start(refresh=True)

    def take(self, answer: SiteAnswer) -> None:
        self._answers[answer.site] = answer
        if self._live:
            self._live.update(self._table(), refresh=True)
        elif not self._out.is_terminal:
            self._print(answer)

    def _print(self, answer: SiteAnswer) -> None:
        self._out.print(reply_line(answer, was_awaited=self._wait is Waiting.ALL), soft_wrap=True)

    def _table(self) -> Table:
        return live_table(dict.fromkeys((*self._expected, *self._answers)), self._answers)

    def accepted(self, id_: str, named: Sequence[str]) -> Accepted:
        """All in one, as the API would have said it. In the end of a whole answer every site is named."""
        answers = tuple(self._answers.values())
        verdict = _VERDICTS.get(answers[0].status, Verdict.OK) if answers else None
        if verdict is None or (verdict is Verdict.OK and not set(named) <= set(self._answers)):
            raise ConnectionLostError(
                "the agent closed the connection before it replied; it is unknown whether it accepted the operation\n"
                f"  When the agent is back: cheops log {printable(id_)}"
            )
        return Accepted(
            operation=answers[0].operation,
            resource=id_,
            sites=tuple(self._answers),
            answers=tuple(one for one in answers if one.status not in _NO_REPLY),
            verdict=None if answers[0].status in _NO_REPLY else verdict,
            waiting_for=tuple(one.site for one in answers if one.status in _NO_REPLY),
            satisfied=_is_enough(answers, self._wait),
        )


def _is_enough(answers: Sequence[SiteAnswer], wait: Waiting) -> bool:
    done = sum(one.status not in (*_NO_REPLY, Status.UNKNOWN) for one in answers)
    if any(one.status is Status.KO for one in answers):
        return True  # there may be nobody else to come
    needed = {Waiting.NONE: 0, Waiting.FIRST: 1, Waiting.QUORUM: len(answers) // 2 + 1}
    return done >= needed.get(wait, len(answers))
