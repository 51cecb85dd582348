"""`cheops exec` and `cheops show`: run an operation on a resource, or read its state at every site.

On a terminal the replies of the sites appear in a live table as they arrive; in a pipe each is one line. Other
commands that submit operations (delete, sites) print their replies with the same functions.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from cheops.api.models.operations import Accepted, SiteAnswer, SubmitRequest, Wait
from cheops.cli.options import FAILED, NOT_YET, ShowingOption, TimeoutOption, UrlOption, Waiting, WaitOption, agent
from cheops.cli.output import (
    Output,
    OutputOption,
    console,
    emit,
    emit_answer,
    one_line,
    print_table,
    printable_lines,
    styled_status,
    table,
)
from cheops.client import Agent
from cheops.errors import CheopsError, ClientError, Fault
from cheops.log.operation import Kind, Status, Verdict
from cheops.log.rules import rule_text
from cheops.text import in_words, printable

if TYPE_CHECKING:
    from cheops.api.models.operations import DryRun

# -- commands ---------------------------------------------------------------------------------------------

_NAMED_FILE = re.compile(r"\{([^{}\s]+)\}")
_RESERVED = ("config", "config.json", "operation")  # form fields of the request itself


def exec_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: Annotated[str, typer.Option("--id", help="The id of the resource.")],
    type_: Annotated[str, typer.Option("--type", help="The type of the operation, as in the matrix.")],
    command: Annotated[
        str,
        typer.Option("--command", help="The command to run at each site. {path} sends that file along."),
    ],
    sites: Annotated[
        str, typer.Option("--sites", help="The sites, such as 'site1 & site2'. Required for a new resource.")
    ] = "",
    config: Annotated[
        Path | None, typer.Option("--config", help="A new matrix for the resource (JSON or YAML).")
    ] = None,
    resource_type: Annotated[
        str,
        typer.Option(
            "--resource-type",
            help="The type of a new resource, from the sites' configuration. Default: the only type, or 'default'.",
        ),
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Replace the state: this operation becomes the new base.")
    ] = False,
    wait: WaitOption = Waiting.ALL,
    timeout: TimeoutOption = 30.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would do, without running, saving or sending anything.")
    ] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a command on a resource, at all its sites, and show each reply as it arrives.

    Exit code: 0 if enough sites replied OK, 1 if one failed, 3 if too few replied in time (delivery then continues in
    the background). The word 'exec' may be omitted.
    """

    command, files = named_files(command)
    request = SubmitRequest(
        type=type_,
        command=command,
        sites=sites,
        resource_type=resource_type,
        kind=Kind.FORCE if force else Kind.NORMAL,
        matrix=_matrix_of_file(config) if config is not None else None,
    )
    if dry_run:
        _dry_run(agent(url), id_, request, output)
    elif output in (Output.JSON, Output.YAML):
        _submit(agent(url), id_, request, files, wait, timeout, output)
    else:
        _follow(agent(url), id_, request, files, wait, timeout)


def _dry_run(client: Agent, id_: str, request: SubmitRequest, output: Output) -> None:

    response = client.dry_run(id_, request)
    emit_answer(output, response, lambda out: draw_dry_run(out, response))
    raise typer.Exit(FAILED if response.refused else 0)


def _submit(  # noqa: PLR0913, PLR0917 - one parameter per option
    client: Agent,
    id_: str,
    request: SubmitRequest,
    files: dict[str, Path],
    wait: Waiting,
    timeout: float,
    output: Output,
) -> None:
    """For programs: one response at the end."""

    response = client.submit(id_, request, files=files, wait=Wait(wait.value), timeout_s=timeout)
    emit_answer(output, response, lambda out: draw_accepted(out, out, response, timeout))
    raise typer.Exit(exit_code(response))


def _follow(  # noqa: PLR0913, PLR0917 - one parameter per option
    client: Agent, id_: str, request: SubmitRequest, files: dict[str, Path], wait: Waiting, timeout: float
) -> None:
    """For users: each reply as it arrives."""

    out = console()
    expected = expected_sites(client, id_, request.sites) if out.is_terminal else ()
    with Follower(out, files, expected, wait) as follower:
        stream = client.answers(id_, request, files=files, wait=Wait(wait.value), timeout_s=timeout, sent=follower.sent)
        for answer in stream:
            follower.take(answer)
    response = follower.accepted(id_, named_sites(request.sites))
    print_missing(console(stderr=True), response, timeout)
    raise typer.Exit(exit_code(response))


def show_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: Annotated[str, typer.Option("--id", help="The id of the resource.")],
    sites: Annotated[str, typer.Option("--sites", help="The sites. Default: all sites of the resource.")] = "",
    command: ShowingOption = "",
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the state of a resource at each of its sites, by running a read-only command there."""
    from cheops.client.agent import Form  # noqa: PLC0415 - slow to import

    shown = agent(url).show(id_, Form({"command": command, "sites": sites}, {}), timeout)
    emit(output, shown, lambda out: _draw_states(out, shown))
    raise typer.Exit(0 if all(one["Status"] == "OK" for one in shown.values()) else FAILED)


def _draw_states(out: Console, shown: dict[str, Any]) -> None:
    rows = table("SITE", "STATUS", "OUTPUT")
    for site, one in shown.items():
        rows.add_row(site, styled_status(one["Status"]), printable_lines(one["Output"]))
    print_table(out, rows)


def named_files(command: str) -> tuple[str, dict[str, Path]]:
    """Replace each {path} of an existing file in the command by a unique name, and return these files.

    Other text in braces stays as it is: commands often contain JSON.
    """
    files: dict[str, Path] = {}

    def replaced(match: re.Match[str]) -> str:
        path = Path(match[1]).expanduser()
        if not path.is_file():
            return match[0]
        known = next((name for name, other in files.items() if other == path), None)
        name, number = known or path.name, 0
        while known is None and (name in files or name in _RESERVED):
            number += 1
            name = f"{path.name}.{number}"
        files[name] = path
        return f"{{{name}}}"

    return _NAMED_FILE.sub(replaced, command), files


def _matrix_of_file(path: Path) -> dict[str, Any]:
    """The matrix of a file. It is checked here, where an error can name the line."""
    from cheops.matrix_file import read_matrix  # noqa: PLC0415 - it imports all parsers

    if not path.is_file():
        raise ClientError(f"{path}: no such file")
    both = {"concurrent": "take-both"}
    entries = [
        {"before": entry.before, "after": entry.after, "result": entry.result.value}
        | (both if entry.concurrent_both else {})
        for entry in read_matrix(path).matrix.entries
    ]
    return {"matrix": entries}


# -- a dry run --------------------------------------------------------------------------------------------


def draw_dry_run(out: Console, response: "DryRun") -> None:
    """Print where it would run, what it would supersede or run again, and which sites are unreachable."""
    if response.refused:
        out.print(Text.assemble(("it would be refused: ", "red"), printable(response.refused)), soft_wrap=True)
        return
    facts = table("DRY RUN", "")
    facts.add_row("runs at", ", ".join(response.sites))
    facts.add_row("runs first at", response.first_at or "-")
    facts.add_row("runs here", ", ".join(response.runs_here) or "nothing")
    facts.add_row("command", printable(response.command))
    for site, again in response.replayed.items():
        if again:
            facts.add_row(f"runs again at {site}", ", ".join(again))
    facts.add_row("waits for", ", ".join(response.unreachable) or "none: all sites are reachable")
    print_table(out, facts)
    _draw_superseded(out, response)
    if response.order_not_enforced:
        out.print("its order relative to the other operations cannot be enforced", style="red")
    for note in response.notes:
        out.print(f"note: {printable(note)}", style="yellow", soft_wrap=True)
    out.print("\nNothing was run, saved or sent.", style="dim")


def _draw_superseded(out: Console, response: "DryRun") -> None:
    out.print()
    if response.superseded_by:
        own = response.superseded_by
        words = f"it would have no effect: {own.operation} supersedes it, {rule_text(own.rule, own.sentence)}"
        out.print(words, style="red", soft_wrap=True)
    for one in response.would_supersede:
        out.print(f"supersedes {one.operation}: {rule_text(one.rule, one.sentence)}", soft_wrap=True)
    if not response.would_supersede:
        out.print("supersedes nothing")


# -- replies ----------------------------------------------------------------------------------------------

_BAD = ("KO", "UNKNOWN")
_UNFINISHED = ("PENDING", "RUNNING")


def exit_code(response: Accepted) -> int:
    if response.verdict == "VOID" or any(answer.status in _BAD for answer in response.answers):
        return FAILED
    return 0 if response.satisfied else NOT_YET


def draw_accepted(out: Console, err: Console, response: Accepted, timeout_s: float) -> None:
    """Print each reply, and on standard error the sites that have not replied."""
    out.print(f"operation {response.operation} on {printable(response.resource)}", soft_wrap=True)
    for answer in response.answers:
        out.print(reply_line(answer), soft_wrap=True)
    for site in response.waiting_for:
        out.print(styled_status("PENDING").append(f" {printable(site)}"), soft_wrap=True)
    print_missing(err, response, timeout_s)


def reply_line(answer: SiteAnswer, *, was_awaited: bool = True) -> Text:
    """`OK      site1  hello`; output of several lines follows below. An awaited site without a reply is a TIMEOUT."""
    shown = "TIMEOUT" if answer.status in _UNFINISHED and was_awaited else answer.status
    line = styled_status(shown).append(" " * max(8 - len(shown), 1)).append(printable(answer.site))
    text = reply_text(answer)
    if "\n" in text:
        return line.append("".join(f"\n        {row}" for row in text.splitlines()))
    return line.append(f"  {text}" if text else "")


def reply_text(answer: SiteAnswer) -> str:
    """The output of the command; after a failure also the reason."""
    parts = [answer.output, answer.detail] if answer.status != "OK" else [answer.output or answer.detail]
    return "\n".join(filter(None, map(printable_lines, parts)))


def print_missing(err: Console, response: Accepted, timeout_s: float) -> None:
    """Print which sites have not replied, and how to follow up."""
    id_ = shlex.quote(printable(response.resource))
    if any(answer.status == "UNKNOWN" for answer in response.answers):
        err.print(f"it is unknown whether it ran; to resolve it: cheops resolve {id_}", style="red", soft_wrap=True)
    if response.satisfied or not response.waiting_for:
        return
    err.print(
        f"no reply from {in_words(response.waiting_for)} within {timeout_s:g} s. "
        f"{response.operation} is saved; delivery continues in the background.\n"
        f"  Progress:            cheops describe operation {id_} {response.operation}\n"
        f"  Wait for completion: cheops wait {id_} --for=converged",
        style="yellow",
        soft_wrap=True,
    )


def live_table(sites: Iterable[str], answers: dict[str, SiteAnswer]) -> Table:
    """All sites, including those that have not replied yet."""
    rows = table("SITE", "STATUS", "TOOK", "OUTPUT")
    for site in sites:
        answer = answers.get(site)
        if answer is None:
            rows.add_row(printable(site), Text("…", style="yellow"), "", "")
            continue
        took = "" if answer.took_ms is None else f"{answer.took_ms} ms"
        rows.add_row(printable(site), styled_status(answer.status), took, one_line(reply_text(answer), 200))
    return rows


_NO_REPLY = (Status.PENDING, Status.RUNNING)
_VERDICTS = {Status.KO: Verdict.VOID, Status.SUPERSEDED: Verdict.SUPERSEDED, Status.OK: Verdict.OK}
_PLAIN_SITES = re.compile(r'[^;%+(){},"&]+(&[^;%+(){},"&]+)*')


class ConnectionLostError(CheopsError):
    """The agent closed the connection in the middle of its response; the operation may be lost."""

    fault = Fault.PEER
    definite = False


def named_sites(sites: str) -> tuple[str, ...]:
    """The names in a plain list such as `a & b`; none if the scope uses more of the language."""
    plain = _PLAIN_SITES.fullmatch(sites)
    return tuple(name.strip() for name in sites.split("&")) if plain else ()


def expected_sites(agent: Agent, id_: str, sites: str) -> tuple[str, ...]:
    """The sites that will reply, as far as known beforehand; only for display."""
    try:
        return named_sites(sites) or tuple(site.site for site in agent.status(id_, fresh_s=0).sites)
    except CheopsError:
        return ()  # the request itself reports the error


class Follower:
    """Shows an operation on its way: the upload first, then the reply of each site."""

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
        # The live table is transient. What stays on the terminal are the same lines as in a pipe, to copy and scroll.
        if self._out.is_terminal:
            for answer in self._answers.values():
                self._print(answer)

    def sent(self, size: int) -> None:
        """Count uploaded bytes; the last ones end the progress bar."""
        if self._bar is None:
            return
        self._left -= size
        self._bar.advance(self._bar.task_ids[0], size)
        if self._left <= 0:
            self._bar.stop()
            self._bar = None
            self._watch()

    def _watch(self) -> None:
        # No refresh thread: the table changes only when a reply arrives.
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
        """The replies as one response, as the API returns it. A complete stream names every site."""
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
        return True  # after a failure at the origin no other site replies
    needed = {Waiting.NONE: 0, Waiting.FIRST: 1, Waiting.QUORUM: len(answers) // 2 + 1}
    return done >= needed.get(wait, len(answers))
