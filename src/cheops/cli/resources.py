"""`cheops delete`, `cheops sites …` and `cheops resolve`: change a resource as a whole."""

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cheops.api.models.operations import Wait
from cheops.cli.exec import draw_accepted, exit_code
from cheops.cli.options import FAILED, IdArgument, TimeoutOption, UrlOption, Waiting, WaitOption, agent
from cheops.cli.output import Output, OutputOption, console, emit_answer
from cheops.errors import ClientError
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models.operations import Accepted, ChangeSites, Resolved
    from cheops.api.models.resources import ResourceStatus


sites_app = typer.Typer(no_args_is_help=True)
_SITES = typer.Argument(metavar="SITES...", show_default=False, help="Names of sites.")
SitesArgument = Annotated[list[str], _SITES]


class Happened(StrEnum):
    YES = "yes"
    NO = "no"


DeleteCopyOption = Annotated[
    bool,
    typer.Option("--delete-copy", help="Delete the copies at the sites that the resource leaves."),
]
DeleteWithOption = Annotated[
    str,
    typer.Option(
        "--delete-with", metavar="COMMAND", help="The command that deletes the copy. Default: the type's 'reset'."
    ),
]


def delete_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: IdArgument,
    command: Annotated[
        str, typer.Option("--command", help="The command that deletes it. Default: the type's 'reset'.")
    ] = "",
    wait: WaitOption = Waiting.ALL,
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a resource at all its sites; a deletion supersedes all concurrent operations.

    Exit code: 0 if enough sites replied OK, 1 if one failed, 3 if too few replied in time.
    """
    response = agent(url).delete(id_, command, wait=Wait(wait.value), timeout_s=timeout)
    _finish(response, timeout, output)


@sites_app.command("set", epilog="Example: cheops sites set counter site1 site2 site3")
def set_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: IdArgument,
    sites: SitesArgument,
    delete_copy: DeleteCopyOption = False,
    delete_with: DeleteWithOption = "",
    wait: WaitOption = Waiting.ALL,
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set the sites of a resource."""
    request = _request(sites, "set", delete_copy=delete_copy, delete_with=delete_with)
    _change(id_, request, wait, timeout, url, output)


@sites_app.command("add", epilog="Example: cheops sites add counter site4")
def add_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: IdArgument,
    sites: SitesArgument,
    wait: WaitOption = Waiting.ALL,
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add sites to a resource; they catch up automatically."""
    _change(id_, _request(sites, "add"), wait, timeout, url, output)


@sites_app.command("remove", epilog="Example: cheops sites remove counter site2")
def remove_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: IdArgument,
    sites: SitesArgument,
    delete_copy: DeleteCopyOption = False,
    delete_with: DeleteWithOption = "",
    wait: WaitOption = Waiting.ALL,
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove sites from a resource: they accept no further operations on it.

    They keep their copy unless --delete-copy or --delete-with is given.
    """
    request = _request(sites, "remove", delete_copy=delete_copy, delete_with=delete_with)
    _change(id_, request, wait, timeout, url, output)


def _request(sites: list[str], how: str, *, delete_copy: bool = False, delete_with: str = "") -> "ChangeSites":
    from cheops.api.models.operations import ChangeSites, SitesChange  # noqa: PLC0415 - slow to import

    return ChangeSites(
        sites=" & ".join(sites),
        how=SitesChange(how),
        delete_copy=delete_copy or bool(delete_with),  # a command to delete it implies the deletion
        delete_with=delete_with,
    )


def _change(  # noqa: PLR0913, PLR0917 - what the three commands have
    id_: str, request: "ChangeSites", wait: Waiting, timeout: float, url: str | None, output: Output
) -> None:
    response = agent(url).change_sites(id_, request, wait=Wait(wait.value), timeout_s=timeout)
    _finish(response, timeout, output)


def _finish(response: "Accepted", timeout: float, output: Output) -> None:
    emit_answer(output, response, lambda out: draw_accepted(out, console(stderr=True), response, timeout))
    raise typer.Exit(exit_code(response))


# -- resolve ---------------------------------------------------------------------------------------------


def resolve_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: IdArgument,
    op: Annotated[str, typer.Option("--op", help="The operation to resolve.", show_default="the only one")] = "",
    happened: Annotated[
        Happened | None,
        typer.Option(
            "--happened", help="Whether the operation took effect: yes or no.", show_default="list what needs resolving"
        ),
    ] = None,
    site: Annotated[
        str, typer.Option("--site", help="The site where it is UNKNOWN.", show_default="the only one, or the agent's")
    ] = "",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Resolve an operation whose outcome is UNKNOWN; without --happened, list what needs resolving.

    Check the application, then state whether the operation took effect; with 'no' it runs again. For any other reason
    why sites differ, see 'cheops repair'. Exit code: 1 while something needs resolving.
    """
    from cheops.api.models.operations import Resolution, ResolveRequest  # noqa: PLC0415 - slow to import

    if happened is None:
        if op or site:
            raise ClientError("--happened is missing: yes or no. To list what needs resolving, omit --op and --site")
        status = agent(url).status(id_)
        emit_answer(output, status, lambda out: draw_open(out, status))
        raise typer.Exit(FAILED if status.overall == "DIVERGED" else 0)
    client = agent(url)
    site, op = (site, op) if site else _only_open(client.status(id_), op)
    resolution = Resolution.HAPPENED if happened is Happened.YES else Resolution.NOT_HAPPENED
    response = client.resolve(id_, ResolveRequest(resolution=resolution, operation=op, site=site))
    emit_answer(output, response, lambda out: _draw_resolved(out, response))


def _only_open(response: "ResourceStatus", op: str) -> tuple[str, str]:
    """Site and operation of the only UNKNOWN one; raises if there are several.

    One that is UNKNOWN at its origin was not sent to other sites and is not listed: the agent finds it.
    """
    open_ = [
        (site.site, trouble.operation)
        for site in response.sites
        for trouble in site.unknown
        if op in ("", trouble.operation)
    ]
    if len(open_) > 1:
        choices = "\n".join(f"  --site {shlex.quote(site)} --op {name}" for site, name in open_)
        raise ClientError(f"{len(open_)} operations are UNKNOWN; name the one that you have checked:\n{choices}")
    return open_[0] if open_ else ("", op)


def _draw_resolved(out: Console, response: "Resolved") -> None:
    if response.resolution == "happened":
        text = f"{response.operation} is recorded as done at {response.site}"
    else:
        text = f"{response.operation} did not take effect at {response.site}; it runs there now"
    out.print(text, soft_wrap=True)


def draw_open(out: Console, response: "ResourceStatus") -> None:
    """Print what an operator must resolve, each with the command that does it."""
    id_ = shlex.quote(printable(response.id))
    if response.overall != "DIVERGED":
        out.print(f"nothing to resolve: {response.overall}, {response.sentence}", soft_wrap=True)
        return
    for site in response.sites:
        for trouble in site.unknown:
            out.print(f"UNKNOWN   {trouble.operation} at {site.site}: {printable(trouble.detail)}", style="red")
            out.print(
                f"  check the application there, then: cheops resolve {id_} "
                f"--site {shlex.quote(site.site)} --op {trouble.operation} --happened yes|no",
                soft_wrap=True,
            )
    failed = [(site.site, trouble) for site in response.sites for trouble in site.failed]
    for name, trouble in failed:
        out.print(f"DIVERGED  {trouble.operation} at {name}: {printable(trouble.detail)}", style="red")
    if failed or response.order_not_enforced or not any(site.unknown for site in response.sites):
        out.print(f"  make the sites equal again: cheops repair {id_}", soft_wrap=True)
