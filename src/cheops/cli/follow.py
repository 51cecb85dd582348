"""Following an operation while sites answer: line by line into a pipe, as a live table on a terminal.

On a terminal first a bar while files are uploaded, then the table of all sites; both give way to the same
lines that a pipe gets.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from cheops.api.models import Accepted, SiteAnswer
from cheops.cli.answers import answer_line, live_table
from cheops.cli.change import Waiting
from cheops.client import Agent
from cheops.errors import CheopsError, Fault
from cheops.log.operation import Status, Verdict
from cheops.text import printable

_NO_ANSWER = (Status.PENDING, Status.RUNNING)
_VERDICTS = {Status.KO: Verdict.VOID, Status.SUPERSEDED: Verdict.SUPERSEDED, Status.OK: Verdict.OK}
_PLAIN_SITES = re.compile(r'[^;%+(){},"&]+(&[^;%+(){},"&]+)*')


class BrokenOffError(CheopsError):
    """The agent went away while it answered: the rest of its answer is lost, and perhaps the operation."""

    fault = Fault.PEER
    definite = False


def sites_named(sites: str) -> tuple[str, ...]:
    """The names that `a & b` joins; none if it says more than that."""
    plain = _PLAIN_SITES.fullmatch(sites)
    return tuple(name.strip() for name in sites.split("&")) if plain else ()


def sites_expected(agent: Agent, id_: str, sites: str) -> tuple[str, ...]:
    """Who will answer, as far as that can be said beforehand; only for the eye."""
    try:
        return sites_named(sites) or tuple(site.site for site in agent.status(id_, fresh_s=0).sites)
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
        self._out.print(answer_line(answer, was_awaited=self._wait is Waiting.ALL), soft_wrap=True)

    def _table(self) -> Table:
        return live_table(dict.fromkeys((*self._expected, *self._answers)), self._answers)

    def accepted(self, id_: str, named: Sequence[str]) -> Accepted:
        """All in one, as the API would have said it. In the end of a whole answer every site is named."""
        answers = tuple(self._answers.values())
        verdict = _VERDICTS.get(answers[0].status, Verdict.OK) if answers else None
        if verdict is None or (verdict is Verdict.OK and not set(named) <= set(self._answers)):
            raise BrokenOffError(
                "the agent went away before it had answered; whether it has taken the operation is not sure\n"
                f"  When it is back: cheops log {printable(id_)}"
            )
        return Accepted(
            operation=answers[0].operation,
            resource=id_,
            sites=tuple(self._answers),
            answers=tuple(one for one in answers if one.status not in _NO_ANSWER),
            verdict=None if answers[0].status in _NO_ANSWER else verdict,
            waiting_for=tuple(one.site for one in answers if one.status in _NO_ANSWER),
            satisfied=_is_enough(answers, self._wait),
        )


def _is_enough(answers: Sequence[SiteAnswer], wait: Waiting) -> bool:
    done = sum(one.status not in (*_NO_ANSWER, Status.UNKNOWN) for one in answers)
    if any(one.status is Status.KO for one in answers):
        return True  # there may be nobody else to come
    needed = {Waiting.NONE: 0, Waiting.FIRST: 1, Waiting.QUORUM: len(answers) // 2 + 1}
    return done >= needed.get(wait, len(answers))
