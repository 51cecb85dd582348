"""`cheops exec` and `cheops show`: run an operation on a resource, and show its state at every site."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.options import FAILED, ShowingOption, TimeoutOption, UrlOption, Waiting, WaitOption, agent
from cheops.cli.output import (
    Output,
    OutputOption,
    console,
    emit,
    emit_answer,
    print_table,
    printable_lines,
    styled_status,
    table,
)
from cheops.cli.replies import draw_accepted, exit_code, print_missing
from cheops.errors import ClientError
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import DryRun, SubmitRequest
    from cheops.client import Agent


def draw_dry_run(out: Console, found: "DryRun") -> None:
    """Where, what it would beat, what would be run again, who would not get it now."""
    if found.refused:
        out.print(Text.assemble(("it would be refused: ", "red"), printable(found.refused)), soft_wrap=True)
        return
    facts = table("DRY RUN", "")
    facts.add_row("runs at", ", ".join(found.sites))
    facts.add_row("runs first at", found.first_at or "-")
    facts.add_row("runs here", ", ".join(found.runs_here) or "nothing")
    facts.add_row("command", printable(found.command))
    for site, again in found.replayed.items():
        if again:
            facts.add_row(f"runs again at {site}", ", ".join(again))
    facts.add_row("waits for", ", ".join(found.unreachable) or "none: all sites are reachable")
    print_table(out, facts)
    _draw_superseded(out, found)
    if found.order_not_enforced:
        out.print("its order relative to the other operations cannot be enforced", style="red")
    for note in found.notes:
        out.print(f"note: {printable(note)}", style="yellow", soft_wrap=True)
    out.print("\nNothing was run, saved or sent.", style="dim")


def _draw_superseded(out: Console, found: "DryRun") -> None:
    out.print()
    if found.superseded_by:
        own = found.superseded_by
        words = f"it would have no effect: {own.operation} supersedes it, {own.sentence} (rule {own.rule})"
        out.print(words, style="red", soft_wrap=True)
    for one in found.would_supersede:
        out.print(f"supersedes {one.operation}: {one.sentence} (rule {one.rule})", soft_wrap=True)
    if not found.would_supersede:
        out.print("supersedes nothing")


_NAMED_FILE = re.compile(r"\{([^{}\s]+)\}")
_RESERVED = ("config", "config.json", "operation")  # under these the matrix and the operation itself go


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
        typer.Option("--resource-type", help="The resource type, from the sites' configuration. For a new resource."),
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
    from cheops.api.models import SubmitRequest  # noqa: PLC0415 - see asking.py
    from cheops.log.operation import Kind  # noqa: PLC0415 - see asking.py

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


def _dry_run(asked: "Agent", id_: str, request: "SubmitRequest", output: Output) -> None:

    found = asked.dry_run(id_, request)
    emit_answer(output, found, lambda out: draw_dry_run(out, found))
    raise typer.Exit(FAILED if found.refused else 0)


def _submit(  # noqa: PLR0913, PLR0917 - what can be said of an operation
    asked: "Agent",
    id_: str,
    request: "SubmitRequest",
    files: dict[str, Path],
    wait: Waiting,
    timeout: float,
    output: Output,
) -> None:
    """For programs: one answer when all is said."""
    from cheops.api.models import Wait  # noqa: PLC0415 - see asking.py

    found = asked.submit(id_, request, files=files, wait=Wait(wait.value), timeout_s=timeout)
    emit_answer(output, found, lambda out: draw_accepted(out, out, found, timeout))
    raise typer.Exit(exit_code(found))


def _follow(  # noqa: PLR0913, PLR0917 - what can be said of an operation
    asked: "Agent", id_: str, request: "SubmitRequest", files: dict[str, Path], wait: Waiting, timeout: float
) -> None:
    """For people: each answer as it comes."""
    from cheops.api.models import Wait  # noqa: PLC0415 - see asking.py
    from cheops.cli.replies import (  # noqa: PLC0415
        Follower,
        expected_sites,
        named_sites,
    )

    out = console()
    expected = expected_sites(asked, id_, request.sites) if out.is_terminal else ()
    with Follower(out, files, expected, wait) as follower:
        stream = asked.answers(id_, request, files=files, wait=Wait(wait.value), timeout_s=timeout, sent=follower.sent)
        for answer in stream:
            follower.take(answer)
    found = follower.accepted(id_, named_sites(request.sites))
    print_missing(console(stderr=True), found, timeout)
    raise typer.Exit(exit_code(found))


def show_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: Annotated[str, typer.Option("--id", help="The id of the resource.")],
    sites: Annotated[str, typer.Option("--sites", help="The sites. Default: all sites of the resource.")] = "",
    command: ShowingOption = "",
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the state of a resource at each of its sites, by running a read-only command there."""
    from cheops.client.agent import Form  # noqa: PLC0415 - see asking.py

    shown = agent(url).show(id_, Form({"command": command, "sites": sites}, {}), timeout)
    emit(output, shown, lambda out: _draw_states(out, shown))
    raise typer.Exit(0 if all(one["Status"] == "OK" for one in shown.values()) else FAILED)


def _draw_states(out: Console, shown: dict[str, Any]) -> None:
    made = table("SITE", "STATUS", "OUTPUT")
    for site, one in shown.items():
        made.add_row(site, styled_status(one["Status"]), printable_lines(one["Output"]))
    print_table(out, made)


def named_files(command: str) -> tuple[str, dict[str, Path]]:
    """The command with each {path} that is a file replaced by a name of its own, and these files.

    What stands in braces and is no file stays as it is: commands are full of JSON.
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
    """The matrix of a file, checked here, where a complaint can name its line."""
    from cheops.matrix_file import read_matrix  # noqa: PLC0415 - it brings the parsers of everything

    if not path.is_file():
        raise ClientError(f"{path}: no such file")
    both = {"concurrent": "take-both"}
    entries = [
        {"before": entry.before, "after": entry.after, "result": entry.result.value}
        | (both if entry.concurrent_both else {})
        for entry in read_matrix(path).matrix.entries
    ]
    return {"matrix": entries}
