"""The commands: one table with the module of each, and a group that imports a command when it is called.

The table has each command's summary, so that the list of commands and the completion of their names import no
command. The summary of a single command must be the first line of its docstring; a test compares them. The summary of a
group is its help, and stands here only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from cheops.cli.options import note_token_file


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: `where` is `module:name` below cheops.cli, a function or a Typer app."""

    name: str
    panel: str
    where: str
    summary: str
    example: str = ""

    def load(self) -> Any:
        """Import the command, with its options."""
        module, attribute = self.where.split(":")
        target = getattr(import_module(f"cheops.cli.{module}"), attribute)
        command = self._group(target) if isinstance(target, typer.Typer) else self._single(target)
        command.name = self.name
        _add_token_file(command)
        _make_readable(command)
        return command

    def _group(self, app: typer.Typer) -> Any:
        group = get_group(app)
        group.help = self.summary
        return group

    def _single(self, function: Any) -> Any:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        epilog = f"Example: {self.example}" if self.example else None
        app.command(self.name, epilog=epilog)(function)
        return get_command(app)


def _add_token_file(command: Any) -> None:
    """Add --token-file to each command that calls an agent, which is one with --url."""
    if any(parameter.name == "url" for parameter in command.params):
        command.params.append(_token_file())
    for below in getattr(command, "commands", {}).values():
        _add_token_file(below)


def _token_file() -> Any:
    """The option, as Typer builds it."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def _with_it(
        _file: Annotated[
            Path | None,
            typer.Option(
                "--token-file",
                envvar="CHEOPS_TOKEN_FILE",
                callback=note_token_file,
                help="A file with the access token; else the variable CHEOPS_TOKEN.",
            ),
        ] = None,
    ) -> None: ...

    option = next(parameter for parameter in get_command(app).params if "--token-file" in parameter.opts)
    option.expose_value = False
    return option


def _make_readable(command: Any) -> None:
    """Fix what Typer prints: wrap paragraphs to the window, not where a source line ends, and show arguments in the
    usage line as declared, with brackets around optional ones."""
    if command.help:
        command.help = "\n\n".join(" ".join(part.split()) for part in cleandoc(command.help).split("\n\n"))
    for parameter in command.params:
        if parameter.param_type_name == "argument" and (written := parameter.metavar):
            left_out = not parameter.required and not written.startswith("[")
            shown = f"[{written}]" if left_out else written
            parameter.get_usage_pieces = lambda _ctx, shown=shown: [shown]
    for below in getattr(command, "commands", {}).values():
        _make_readable(below)


class LazyGroup(TyperGroup):
    """Lists its commands from a table, and imports only the one that is called."""

    entries: dict[str, CommandEntry] = {}  # noqa: RUF012 - set once, by the subclass

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Stubs with a summary are enough for help and completion.
        for entry in self.entries.values():
            self.commands[entry.name] = TyperCommand(entry.name, help=entry.summary, rich_help_panel=entry.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.loaded(name) if name in self.entries else command, rest

    def loaded(self, name: str) -> Any:
        return self.entries[name].load()


def group_of(entries: Iterable[CommandEntry]) -> type[LazyGroup]:
    """A Typer group class with these commands."""
    return type("Commands", (LazyGroup,), {"entries": {entry.name: entry for entry in entries}})


_START, _WHERE, _HOW = "Get started", "Scopes", "Merging"
_DO, _LOOK, _SITE, _TRUST = "Change resources", "Inspect", "Run a site", "Test Cheops itself"

COMMANDS = (
    CommandEntry(
        "demo",
        _START,
        "demo:demo_command",
        "Run a guided tour with three real sites on this machine: a network cut, a conflict, and how it is merged.",
        "cheops demo --fast",
    ),
    CommandEntry(
        "init",
        _START,
        "config:init_command",
        "Write a first configuration file for a site, valid and with comments.",
        "cheops init --site paris --listen 10.0.0.1:8079 --peer lyon=https://10.0.0.2:8079",
    ),
    CommandEntry(
        "exec",
        _DO,
        "exec:exec_command",
        "Run a command on a resource, at all its sites, and show each reply as it arrives.",
        "cheops exec --id counter --sites 'site1 & site2' --type inc --command 'redis-cli incrby counter 13'",
    ),
    CommandEntry(
        "edit",
        _DO,
        "edit:edit_command",
        "Edit a text in $VISUAL or $EDITOR, and submit each save as an operation.",
        "cheops edit notes --sites 'site1 & site2'",
    ),
    CommandEntry(
        "delete",
        _DO,
        "resources:delete_command",
        "Delete a resource at all its sites; a deletion supersedes all concurrent operations.",
        "cheops delete counter --command 'redis-cli del counter'",
    ),
    CommandEntry("sites", _DO, "resources:sites_app", "Change the sites of a resource."),
    CommandEntry(
        "resolve",
        _DO,
        "resources:resolve_command",
        "Resolve an operation whose outcome is UNKNOWN; without --happened, list what needs resolving.",
        "cheops resolve counter --op site1:3 --happened yes",
    ),
    CommandEntry(
        "repair",
        _DO,
        "repair:repair_command",
        "Make the sites of a resource equal again; without --retry or --from, show what is wrong.",
        "cheops repair counter --from site1",
    ),
    CommandEntry(
        "wait",
        _DO,
        "status:wait_command",
        "Wait until all sites of a resource are in sync.",
        "cheops wait counter --for=converged --timeout 60",
    ),
    CommandEntry(
        "status",
        _LOOK,
        "status:status_command",
        "Show whether all sites of a resource are in sync, or how many resources of the site are.",
        "cheops status counter -o wide",
    ),
    CommandEntry(
        "verify",
        _LOOK,
        "status:verify_command",
        "Read the application's state at every site of a resource, and show the differences.",
        "cheops verify counter",
    ),
    CommandEntry(
        "show",
        _LOOK,
        "exec:show_command",
        "Show the state of a resource at each of its sites, by running a read-only command there.",
        "cheops show --id counter --command 'redis-cli get counter'",
    ),
    CommandEntry(
        "log",
        _LOOK,
        "history:log_command",
        "List the operations on a resource, with one lane per site and the rule that superseded each.",
        "cheops log counter -o wide",
    ),
    CommandEntry(
        "explain",
        _LOOK,
        "history:explain_command",
        "Explain step by step why a resource is in its state, and what to do about it.",
        "cheops explain counter",
    ),
    CommandEntry(
        "get",
        _LOOK,
        "get:get_app",
        "List sites, resources, operations, replicants, requests, flows or receivers of notifications.",
    ),
    CommandEntry(
        "describe",
        _LOOK,
        "get:describe_app",
        "Show the details of one resource, site, operation or replicant.",
    ),
    CommandEntry(
        "watch",
        _LOOK,
        "history:watch_command",
        "Print the events of a resource, or of all resources and sites, until Ctrl-C.",
        "cheops watch counter",
    ),
    CommandEntry(
        "scope",
        _WHERE,
        "scope:app",
        "Parse and explain scopes, the language that says where a request runs.",
    ),
    CommandEntry(
        "matrix",
        _HOW,
        "matrix:app",
        "Show and check matrices, which define how concurrent operations combine.",
    ),
    CommandEntry(
        "agent",
        _SITE,
        "agent:agent_command",
        "Run the agent of one site until it is stopped (Ctrl-C or SIGTERM).",
        "cheops agent --config site.yaml",
    ),
    CommandEntry("config", _SITE, "config:app", "Check the configuration file of a site."),
    CommandEntry("site", _SITE, "site:app", "Invite, list, ping and forget the sites of the mesh."),
    CommandEntry(
        "ca", _SITE, "authority:app", "Create or replace the certificate authority of a mesh, and issue certificates."
    ),
    CommandEntry(
        "token",
        _SITE,
        "tokens:token_app",
        "Create, list and revoke the access tokens of users and programs.",
    ),
    CommandEntry(
        "audit",
        _SITE,
        "history:audit_command",
        "Show who changed what at a site, from where, and which requests were refused.",
        "cheops audit --who ci --outcome refused",
    ),
    CommandEntry(
        "clock",
        _SITE,
        "clock:clock_command",
        "Show a site's clock beside each peer's, and what is held back because of stamps.",
        "cheops clock --cure",
    ),
    CommandEntry(
        "check",
        _SITE,
        "status:check_command",
        "Check everything that an agent depends on, and report what to fix.",
        "cheops check -o json",
    ),
    CommandEntry(
        "sim",
        _TRUST,
        "sim:sim_command",
        "Simulate sites with network faults, crashes and skewed clocks, and check the invariants.",
        "cheops sim --seeds 100",
    ),
)

_EXEC_FLAGS = ("--force", "--dry-run")
_EXEC_OPTIONS = (
    *("--id", "--sites", "--type", "--command", "--config", "--resource-type", "--wait", "--timeout"),
    *("--url", "--output", "-o", "--token-file"),
)


def with_exec(argv: list[str]) -> list[str]:
    """Insert the word `exec` if it was omitted, as in `cheops --id counter --type inc …`."""
    names = {entry.name for entry in COMMANDS}
    left = list(argv)
    while left:
        option, _, value = left.pop(0).partition("=")
        if option in names:
            return argv
        if option not in _EXEC_FLAGS + _EXEC_OPTIONS:
            break
        if option in _EXEC_OPTIONS and not value:
            left[:1] = []  # the value of the option is not a command: a resource may be called 'status'
    begins = argv[0].split("=")[0] if argv else ""
    return ["exec", *argv] if begins in _EXEC_FLAGS + _EXEC_OPTIONS else argv
