"""`cheops exec` and `cheops show`: an operation on a resource, and a look at its state everywhere."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cheops.cli.output import Output, OutputOption, emit, print_table, table
from cheops.client.http import Agent, AgentError, agent_url
from cheops.client.multipart import Form
from cheops.text import printable

_NAMED_FILE = re.compile(r"\{([^{}\s]+)\}")
_RESERVED = ("config", "config.json")  # under these the matrix goes
UrlOption = Annotated[
    str | None, typer.Option("--url", envvar="CHEOPS_URL", help="The agent's address.", show_default=False)
]
NOT_ALL = 3  # exit code: some site has not answered in time
FAILED = 1


def exec_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: Annotated[str, typer.Option("--id", help="The resource.")],
    sites: Annotated[str, typer.Option("--sites", help="Where, such as 'site1 & site2'.")],
    type_: Annotated[str, typer.Option("--type", help="The operation's type, as the matrix names it.")],
    command: Annotated[
        str,
        typer.Option("--command", help="What to run at each site. {path} names a file to be sent along."),
    ],
    config: Annotated[
        Path | None, typer.Option("--config", help="A matrix that holds from now on (JSON or YAML).")
    ] = None,
    resource_type: Annotated[
        str, typer.Option("--resource-type", help="For a new resource: its type in the sites' configuration.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Make this the new base, whatever was before.")
    ] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="How long to wait, in seconds.")] = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a command on a resource, at all its sites; answers are shown as they come.

    Ends with 0 if all sites answered OK, 1 if one failed, 3 if one has not answered in time.
    """
    command, files = named_files(command)
    if config is not None:
        files["config.json"] = _existing(config)
    fields = {"command": command, "sites": sites, "type": type_, "timeout": str(timeout)}
    fields |= {"resource-type": resource_type} if resource_type else {}
    fields |= {"force": "true"} if force else {}
    lines = []
    for line in Agent(agent_url(url)).exec_lines(id_, Form(fields, files), timeout):
        lines.append(line)
        if output is Output.TABLE:
            typer.echo(_told(line))
    emit(output, lines, lambda _out: None)  # people have seen them
    statuses = {line["Status"] for line in lines}
    raise typer.Exit(FAILED if "KO" in statuses else NOT_ALL if "TIMEOUT" in statuses else 0)


def show_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: Annotated[str, typer.Option("--id", help="The resource.")],
    sites: Annotated[str, typer.Option("--sites", help="Where; if left out, wherever the resource is.")] = "",
    command: Annotated[
        str, typer.Option("--command", help="What shows the state; if left out, the type's 'read'.")
    ] = "",
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="How long to wait, in seconds.")] = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the state of a resource at each of its sites, by running a command there that changes nothing."""
    shown = Agent(agent_url(url)).show(id_, Form({"command": command, "sites": sites}, {}), timeout)
    emit(output, shown, lambda out: _draw_states(out, shown))
    raise typer.Exit(0 if all(one["Status"] == "OK" for one in shown.values()) else FAILED)


def _draw_states(out: Console, shown: dict[str, Any]) -> None:
    made = table("site", "status", "output")
    for site, one in shown.items():
        made.add_row(site, one["Status"], printable_lines(one["Output"].rstrip("\n")))
    print_table(out, made)


def printable_lines(text: str) -> str:
    """What a command printed, harmless for a terminal."""
    return "\n".join(map(printable, text.splitlines()))


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


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise AgentError(f"{path}: no such file")
    return path


def _told(line: dict[str, Any]) -> str:
    text = printable_lines(line["Output"].rstrip("\n"))
    head = f"{line['Status']:<8}{line['Site']}"
    if "\n" in text:
        return head + "\n" + "\n".join(f"        {row}" for row in text.splitlines())
    return f"{head}  {text}".rstrip()
