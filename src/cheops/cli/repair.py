"""`cheops repair`: make the sites of a resource equal again."""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cheops.cli.options import FAILED, NOT_YET, IdArgument, TimeoutOption, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit_answer, one_line, print_table, styled_status, table
from cheops.errors import ClientError
from cheops.text import in_words, printable

if TYPE_CHECKING:
    from cheops.api.models.operations import Resolved
    from cheops.api.models.repair import Repairable, RepairPlan

_MOST_SHOWN = 160  # characters of a state


def repair_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    id_: IdArgument,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run again what failed, at the sites where it failed.")
    ] = False,
    from_: Annotated[
        str,
        typer.Option("--from", metavar="SITE", help="Take the state of the application at this site, for all sites."),
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="With --from: do it, rather than show what would be lost.")
    ] = False,
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make the sites of a resource equal again; without --retry or --from, show what is wrong.

    Nothing is changed without --retry, or --from with --yes. Exit code: 0 if the sites are equal, or were repaired; 1
    if they differ, or a site failed; 3 if a site has not replied yet.
    """
    if retry and from_:
        raise ClientError("--retry and --from are two ways to repair: choose one")
    if yes and not from_:
        raise ClientError("--yes is for --from SITE, which replaces the state of the other sites")
    if retry or yes:
        _repair(id_, from_, timeout, url, output)
    plan = agent(url).plan_repair(id_)
    if from_ and from_ not in {site.site for site in plan.sites}:
        sites = in_words(site.site for site in plan.sites)
        raise ClientError(f"'{printable(from_)}' is no site of this resource: it is at {sites}")
    emit_answer(output, plan, lambda out: draw_loss(out, plan, from_) if from_ else draw_plan(out, plan))
    raise typer.Exit(FAILED if from_ or plan.overall == "DIVERGED" or not plan.same else 0)


def _repair(id_: str, from_: str, timeout: float, url: str | None, output: Output) -> None:
    from cheops.api.models.operations import Resolution, ResolveRequest  # noqa: PLC0415 - slow to import

    resolution = Resolution.STATE if from_ else Resolution.RETRY
    request = ResolveRequest(resolution=resolution, site=from_)
    response = agent(url).resolve(id_, request, timeout_s=timeout)
    emit_answer(output, response, lambda out: draw_repaired(out, response))
    raise typer.Exit(_exit_code(response))


def _exit_code(response: "Resolved") -> int:
    outcomes = {site.status for site in response.sites}
    if outcomes & {"KO", "UNKNOWN", "VOID"}:
        return FAILED
    is_open = outcomes & {"PENDING", "RUNNING"} or not all(site.reached for site in response.sites)
    return NOT_YET if is_open else 0


# -- the plan --------------------------------------------------------------------------------------------


def draw_plan(out: Console, plan: "RepairPlan") -> None:
    """Print what is wrong at each site, and what each way to repair would do."""
    out.print(f"{plan.overall}  {printable(plan.resource)}: {printable(plan.sentence)}", soft_wrap=True)
    out.print()
    _draw_sites(out, plan)
    if plan.overall != "DIVERGED" and plan.same:
        out.print("\nnothing to repair: the applications of all sites have the same state")
        return
    _draw_troubles(out, plan)
    id_ = shlex.quote(printable(plan.resource))
    again = [f"{trouble.operation} at {site.site}" for site in plan.sites for trouble in site.failed]
    out.print(f"\ncheops repair {id_} --retry", style="bold")
    out.print(f"  runs again: {in_words(again)}" if again else "  does nothing: no operation failed", soft_wrap=True)
    if plan.no_state:
        out.print(f"cheops repair {id_} --from SITE", style="bold")
        out.print(f"  cannot be done: {printable(plan.no_state)}", soft_wrap=True)
    for site in plan.sites if not plan.no_state else ():
        out.print(f"cheops repair {id_} --from {shlex.quote(site.site)}", style="bold")
        out.print(f"  {_what_state_does(plan, site)}", soft_wrap=True)
    out.print("\nNothing was changed.", style="dim")


def _draw_sites(out: Console, plan: "RepairPlan") -> None:
    rows = table("SITE", "FAILED", "UNKNOWN", "READ", "STATE OF THE APPLICATION")
    for site in plan.sites:
        failed = ", ".join(trouble.operation for trouble in site.failed) or "-"
        unknown = ", ".join(trouble.operation for trouble in site.unknown) or "-"
        rows.add_row(site.site, failed, unknown, styled_status(site.read), one_line(site.state, _MOST_SHOWN))
    print_table(out, rows)


def _draw_troubles(out: Console, plan: "RepairPlan") -> None:
    if any(site.failed or site.unknown for site in plan.sites):
        out.print()
    for site in plan.sites:
        for trouble in site.failed:
            out.print(f"{trouble.operation} failed at {site.site}: {printable(trouble.detail)}", soft_wrap=True)
        for trouble in site.unknown:
            hint = f"cheops resolve {shlex.quote(printable(plan.resource))} --site {shlex.quote(site.site)}"
            text = f"{trouble.operation} is UNKNOWN at {site.site}: {printable(trouble.detail)}"
            out.print(f"{text}\n  check the application there, then: {hint} --happened yes|no", soft_wrap=True)


def _what_state_does(plan: "RepairPlan", site: "Repairable") -> str:
    if plan.no_state:
        return f"cannot be done: {printable(plan.no_state)}"
    if site.read != "OK":
        return f"cannot be done now: {printable(site.state)}"
    others = [one.site for one in plan.sites if one.site != site.site]
    equal = [one.site for one in plan.sites if one.read == "OK" and one.state == site.state and one is not site]
    what = f"writes the state of {site.site} at {in_words(others) if others else 'no other site'}"
    same = f" ({in_words(equal)} {'has' if len(equal) == 1 else 'have'} it already)" if equal else ""
    lost = f"; the effect of {in_words(site.discards)} is lost" if site.discards else "; no operation is lost"
    return what + same + lost


def draw_loss(out: Console, plan: "RepairPlan", name: str) -> None:
    """Print what would be lost if the state of a site were taken."""
    site = next(one for one in plan.sites if one.site == name)
    out.print(f"cheops repair {printable(plan.resource)} --from {name} {_what_state_does(plan, site)}", soft_wrap=True)
    if plan.no_state:
        return
    for other in plan.sites:
        if other is not site and other.state != site.state:
            what = one_line(other.state, _MOST_SHOWN) if other.read == "OK" else f"unknown ({printable(other.state)})"
            out.print(f"  state of {other.site} that is replaced: {what}", soft_wrap=True)
    out.print("  Changes that another site has accepted, and that are not known here yet, are lost too.")
    out.print("\nNothing was changed. To do it, add --yes", style="dim")


# -- what was done ---------------------------------------------------------------------------------------


def draw_repaired(out: Console, response: "Resolved") -> None:
    rows = table("SITE", "STATUS", "OPERATIONS", "")
    for site in response.sites:
        status = styled_status(site.status or ("-" if site.reached else "UNREACHABLE"))
        nothing = "nothing failed here" if site.reached and not site.operations else ""
        rows.add_row(site.site, status, ", ".join(site.operations) or "-", printable(site.detail) or nothing)
    print_table(out, rows)
    id_ = shlex.quote(printable(response.resource))
    code = _exit_code(response)
    if code == FAILED:
        out.print(f"\nit failed at a site: cheops repair {id_}", style="red", soft_wrap=True)
    elif code == NOT_YET and response.resolution == "state":
        out.print("\nsites that have not replied get it when they can be reached", style="yellow", soft_wrap=True)
    elif code == NOT_YET:
        text = f"\na site that is unreachable was not asked: repeat this when it is back, or see cheops status {id_}"
        out.print(text, style="yellow", soft_wrap=True)
