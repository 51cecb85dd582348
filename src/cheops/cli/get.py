"""`cheops get …`: lists of what an agent knows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.asking import IdArgument, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit_answer, print_table, table
from cheops.cli.site_views import draw_sites
from cheops.cli.words import coloured, moment, one_line, rounded_ms
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import Flows, FlowView, OperationView, ReplicantView, RequestView, ResourceSummary

app = typer.Typer(
    no_args_is_help=True,
    help="List what an agent knows: sites, resources, operations, replicants, requests, flows.",
)
_LIST_EXAMPLE = "Example: cheops get resources --prefix shop -o wide"


@app.command("sites", epilog="Example: cheops get sites -o wide")
def sites_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the sites, whether they are up, and how far away."""
    found = agent(url).sites()
    emit_answer(output, found, lambda out: draw_sites(out, found, wide=output is Output.WIDE))


@app.command("resources", epilog=_LIST_EXAMPLE)
def resources_command(
    prefix: Annotated[str, typer.Option("--prefix", help="Only those whose id begins so.")] = "",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the resources that this agent knows, and whether all is well with each."""
    found = list(agent(url).all_resources(prefix))
    emit_answer(output, found, lambda out: draw_resources(out, found, wide=output is Output.WIDE))


@app.command("operations", epilog="Example: cheops get operations counter")
def operations_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the operations on a resource, and what became of each."""
    found = list(agent(url).all_operations(id_))
    emit_answer(output, found, lambda out: draw_operations(out, found, wide=output is Output.WIDE))


@app.command("replicants", epilog="Example: cheops get replicants -o wide")
def replicants_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the replicated HTTP resources of this agent's site, and how its own service calls each."""
    found = list(agent(url).all_replicants())
    emit_answer(output, found, lambda out: draw_replicants(out, found, wide=output is Output.WIDE))


@app.command("requests", epilog="Example: cheops get requests --service image")
def requests_command(
    service: Annotated[str, typer.Option("--service", help="Only those for this service.")] = "",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the latest requests with a scope that the gateway of this site served, the last one first."""
    found = list(agent(url).all_requests(service))
    emit_answer(output, found, lambda out: draw_requests(out, found, wide=output is Output.WIDE))


@app.command("flows", epilog="Example: cheops get flows -o wide")
def flows_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the scopes that HAProxy knows by heart at this site, and where requests with them go."""
    asked = agent(url)
    page = asked.flows()
    found, cursor = list(page.flows), page.next
    while cursor is not None:
        more = asked.flows(cursor)
        found, cursor = [*found, *more.flows], more.next
    emit_answer(output, found, lambda out: draw_flows(out, page, found))


def draw_flows(out: Console, page: "Flows", found: "Sequence[FlowView]") -> None:
    if page.plane != "haproxy":
        who = "the agent forwards by itself" if page.plane == "builtin" else "no service listens here"
        out.print(f"{who}: there are no flows")
        return
    if page.trouble:
        out.print(f"HAProxy is in trouble: {printable(page.trouble)}")
    served = page.fast + page.slow
    share = f"{page.fast / served:.1%} of {served:,} requests" if served else "no request yet"
    carried = f", {page.carried:,} values of carriers" if page.carried else ""
    out.print(f"HAProxy: {page.total:,} flows{carried}; {share} without the agent")
    if not found:
        return
    made = table("SERVICE", "SCOPE", "ROUTE", "SITE")
    for one in found:
        made.add_row(printable(one.service), printable(one.scope), one.route, printable(one.site))
    print_table(out, made)


def draw_resources(out: Console, found: "Sequence[ResourceSummary]", *, wide: bool = False) -> None:
    if not found:
        out.print("no resource is known here")
        return
    more = ("OPERATIONS", "LAST CHANGE") if wide else ()
    made = table("ID", "TYPE", "STATUS", "SITES", *more)
    for one in found:
        sites = ", ".join(one.sites) if wide or len(one.sites) <= 5 else f"{len(one.sites)} sites"
        extra = (str(one.operations), moment(one.last_change)) if wide else ()
        made.add_row(printable(one.id), printable(one.type), _state(one), sites, *extra)
    print_table(out, made)


def draw_replicants(out: Console, found: "Sequence[ReplicantView]", *, wide: bool = False) -> None:
    if not found:
        out.print("no replicant is known here; resources of commands are listed by 'cheops get resources'")
        return
    more = ("PATH", "WAITS") if wide else ()
    made = table("ID", "SERVICE", "LOCAL ID", "STATUS", "SITES", *more)
    for one in found:
        extra = (printable(one.path), one_line(one.waits or "-", 200)) if wide else ()
        local_id, sites = printable(one.local_id or "-"), printable(", ".join(one.sites))
        made.add_row(one.id, printable(one.service), local_id, _state(one), sites, *extra)
    print_table(out, made)


def draw_requests(out: Console, found: "Sequence[RequestView]", *, wide: bool = False) -> None:
    if not found:
        out.print("no request with a scope was served here since the agent's start")
        return
    more = ("SCOPE", "TRIED BEFORE") if wide else ()
    made = table("AT", "SERVICE", "REQUEST", "ROUTE", "SITE", "STATUS", "TOOK", *more)
    for one in found:
        asked = printable(f"{one.method} {one.path}") if wide else one_line(f"{one.method} {one.path}")
        extra = (printable(one.scope), printable(one.fallback or "-")) if wide else ()
        status, took = str(one.status or "left"), rounded_ms(one.took_ms)
        made.add_row(
            moment(one.at),
            printable(one.service),
            asked,
            one.route,
            printable(one.site),
            status,
            took,
            *extra,
        )
    print_table(out, made)


def _state(one: "ResourceSummary | ReplicantView") -> Text:
    """Its verdict; of one that is deleted everywhere, that it is."""
    return coloured("deleted" if one.deleted and one.overall == "CONVERGED" else one.overall)


def draw_operations(out: Console, found: "Sequence[OperationView]", *, wide: bool = False) -> None:
    if not found:
        out.print("no operation is known")
        return
    more = ("BEATEN BY", "RULE") if wide else ()
    made = table("OPERATION", "TYPE", "MADE AT", "EFFECT", "SITES", *more, "COMMAND")
    for op in found:
        extra = (op.beaten_by or "-", str(op.rule or "-")) if wide else ()
        command = printable(op.command) if wide else one_line(op.command)
        made.add_row(
            op.id, printable(op.type), moment(op.made_at), coloured(op.effect), _done(op), *extra, command
        )
    print_table(out, made)


def _done(op: "OperationView") -> str:
    """At how many sites nothing more is to come."""
    done = sum(reply.status not in ("PENDING", "RUNNING", "UNKNOWN") for reply in op.replies)
    return f"{done}/{len(op.replies)}"
