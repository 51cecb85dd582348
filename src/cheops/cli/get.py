"""`cheops get …` and `cheops describe …`: lists of what an agent knows, and all that is known of one thing."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cheops.api.endpoints.declaration import PageParameters
from cheops.api.endpoints.resources import LIST_FLOWS
from cheops.api.endpoints.site import GET_SITE, LIST_NOTIFICATIONS
from cheops.cli.options import IdArgument, UrlOption, agent
from cheops.cli.output import (
    Output,
    OutputOption,
    age,
    emit_answer,
    last_seen,
    one_line,
    print_table,
    printable_lines,
    rounded_ms,
    short_time,
    styled_status,
    table,
    vector,
    yes_no,
)
from cheops.cli.status import draw_site_states
from cheops.log.rules import rule_number, rule_text
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models.operations import OperationView
    from cheops.api.models.resources import Flows, FlowView, ReplicantView, ResourceDetail, ResourceSummary
    from cheops.api.models.site import Notifications, Sites, SiteView
    from cheops.gateway.request_log import ServedRequest


SiteArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The site.")]


# -- cheops get --------------------------------------------------------------------------------------------------


get_app = typer.Typer(no_args_is_help=True)


@get_app.command("sites", epilog="Example: cheops get sites -o wide")
def sites_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the sites, with their state and distance."""
    response = agent(url).sites()
    emit_answer(output, response, lambda out: draw_site_list(out, response, wide=output is Output.WIDE))


class Overall(StrEnum):
    """The same values as those of the API, which is slow to import."""

    CONVERGED = "CONVERGED"
    CONVERGING = "CONVERGING"
    DIVERGED = "DIVERGED"
    UNREACHABLE = "UNREACHABLE"


@get_app.command("resources", epilog="Example: cheops get resources --prefix shop -o wide")
def resources_command(
    prefix: Annotated[str, typer.Option("--prefix", help="Only resources whose id starts with this.")] = "",
    overall: Annotated[
        Overall | None, typer.Option("--overall", case_sensitive=False, help="Only resources with this status.")
    ] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Only resources that all sites have deleted, until they are forgotten.")
    ] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the resources of this agent's site, with their status."""
    if deleted and overall:
        raise typer.BadParameter("--deleted and --overall exclude each other: all that is deleted is in sync")
    response = list(agent(url).all_resources(prefix, overall.value if overall else None, deleted=deleted))
    emit_answer(output, response, lambda out: draw_resources(out, response, wide=output is Output.WIDE))


@get_app.command("operations", epilog="Example: cheops get operations counter")
def operations_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the operations on a resource, with their outcome."""
    response = list(agent(url).all_operations(id_))
    emit_answer(output, response, lambda out: draw_operations(out, response, wide=output is Output.WIDE))


@get_app.command("replicants", epilog="Example: cheops get replicants -o wide")
def replicants_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the replicated HTTP resources of this agent's site, with their ids in its own service."""
    response = list(agent(url).all_replicants())
    emit_answer(output, response, lambda out: draw_replicants(out, response, wide=output is Output.WIDE))


@get_app.command("requests", epilog="Example: cheops get requests --service image")
def requests_command(
    service: Annotated[str, typer.Option("--service", help="Only requests for this service.")] = "",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the latest requests with a scope that this site's gateway served, newest first."""
    response = list(agent(url).all_requests(service))
    emit_answer(output, response, lambda out: draw_requests(out, response, wide=output is Output.WIDE))


@get_app.command("flows", epilog="Example: cheops get flows -o wide")
def flows_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the scopes cached in HAProxy at this site, and where their requests go."""
    client = agent(url)
    page = client.call(LIST_FLOWS, parameters=PageParameters(limit=500))
    response, cursor = list(page.flows), page.next
    while cursor is not None:
        more = client.call(LIST_FLOWS, parameters=PageParameters(cursor=cursor, limit=500))
        response, cursor = [*response, *more.flows], more.next
    emit_answer(output, response, lambda out: draw_flows(out, page, response))


@get_app.command("notifications", epilog="Example: cheops get notifications")
def notifications_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the receivers of notifications, with what waits for each and why it is not delivered."""
    response = agent(url).call(LIST_NOTIFICATIONS)
    emit_answer(output, response, lambda out: draw_notifications(out, response))


# -- cheops describe ---------------------------------------------------------------------------------------------


describe_app = typer.Typer(no_args_is_help=True)


@describe_app.command("resource", epilog="Example: cheops describe resource counter")
def resource_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show a resource: its sites, its state at each, and its matrix."""
    response = agent(url).resource(id_)
    emit_answer(output, response, lambda out: draw_resource(out, response, wide=output is Output.WIDE))


@describe_app.command("site", epilog="Example: cheops describe site site2")
def site_command(name: SiteArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show what the agent knows about a site."""
    response = agent(url).call(GET_SITE, name)
    emit_answer(output, response, lambda out: _draw_facts(out, _site_facts(response)))


@describe_app.command("operation", epilog="Example: cheops describe operation counter site1:3")
def operation_command(
    id_: IdArgument,
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", show_default=False, help="The operation's name, such as site1:3.")
    ],
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show an operation: its command, what it knew of, what superseded it, and its outcome at each site."""
    response = agent(url).operation(id_, operation)
    emit_answer(output, response, lambda out: draw_operation(out, response))


@describe_app.command("replicant", epilog="Example: cheops describe replicant c4e095a1-a357-8d5c-85fc-1e35020baf87")
def replicant_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show a replicated HTTP resource: its sites, and its id in this site's own service."""
    response = agent(url).replicant(id_)
    emit_answer(output, response, lambda out: _draw_facts(out, _replicant_facts(response)))


# -- lists -------------------------------------------------------------------------------------------------------


def draw_notifications(out: Console, response: "Notifications") -> None:
    rows = table("RECEIVER", "CHANNEL", "STATE", "WAITING", "SENT", "FAILURES", "LAST SENT", "PROBLEM")
    for one in response.targets:
        state = styled_status("ok" if one.ok else "failed")
        counts = (f"{number:,}" for number in (one.backlog, one.deliveries, one.failures))
        rows.add_row(
            printable(one.name), one.channel, state, *counts, age(one.last_success_s), one_line(one.problem, 200) or "-"
        )
    print_table(out, rows)


def draw_site_list(out: Console, response: "Sites", *, wide: bool = False) -> None:
    more = ("URL", "VERSION", "CLOCK", "SERVICES") if wide else ()
    rows = table("SITE", "STATE", "LAST SEEN", "RTT", *more)
    for site in response.sites:
        extra = (site.url, site.version or "?", _clock(site), ", ".join(site.services) or "-") if wide else ()
        rtt = f"{'' if site.rtt_measured else '~'}{rounded_ms(site.rtt_ms)}" if site.rtt_ms is not None else "-"
        name = f"{site.name} (this agent)" if site.here else site.name
        rows.add_row(printable(name), styled_status(site.state), age(site.as_of_s), rtt, *extra)
    print_table(out, rows)
    of_sites = (
        f"{site.name}: {problem}" for site in response.sites for problem in site.problems if problem != site.state
    )
    for problem in (*response.problems, *of_sites):
        out.print(f"warning: {printable(problem)}", style="yellow", soft_wrap=True)


def _clock(site: "SiteView") -> str:
    return "-" if site.clock_offset_ms is None else f"{site.clock_offset_ms:+.0f} ms"


def draw_flows(out: Console, page: "Flows", response: "Sequence[FlowView]") -> None:
    if page.plane != "haproxy":
        reason = "the agent forwards requests itself" if page.plane == "builtin" else "no service listens here"
        out.print(f"no flows: {reason}")
        return
    if page.trouble:
        out.print(f"HAProxy does not work: {printable(page.trouble)}")
    served = page.fast + page.slow
    share = f"{page.fast / served:.1%} of {served:,} requests" if served else "no request yet"
    carried = f", {page.carried:,} carrier values" if page.carried else ""
    out.print(f"HAProxy: {page.total:,} flows{carried}; {share} bypassed the agent")
    if not response:
        return
    rows = table("SERVICE", "SCOPE", "ROUTE", "SITE")
    for one in response:
        rows.add_row(printable(one.service), printable(one.scope), one.route, printable(one.site))
    print_table(out, rows)


def draw_resources(out: Console, response: "Sequence[ResourceSummary]", *, wide: bool = False) -> None:
    if not response:
        out.print("no resources")
        return
    more = ("OPERATIONS", "LAST CHANGE") if wide else ()
    rows = table("ID", "TYPE", "STATUS", "SITES", *more)
    for one in response:
        sites = ", ".join(one.sites) if wide or len(one.sites) <= 5 else f"{len(one.sites)} sites"
        extra = (str(one.operations), short_time(one.last_change)) if wide else ()
        rows.add_row(printable(one.id), printable(one.type), _state(one), sites, *extra)
    print_table(out, rows)


def draw_replicants(out: Console, response: "Sequence[ReplicantView]", *, wide: bool = False) -> None:
    if not response:
        out.print("no replicants; for resources of commands see 'cheops get resources'")
        return
    more = ("PATH", "WAITS") if wide else ()
    rows = table("ID", "SERVICE", "LOCAL ID", "STATUS", "SITES", *more)
    for one in response:
        extra = (printable(one.path), one_line(one.waits or "-", 200)) if wide else ()
        local_id, sites = printable(one.local_id or "-"), printable(", ".join(one.sites))
        rows.add_row(one.id, printable(one.service), local_id, _state(one), sites, *extra)
    print_table(out, rows)


def draw_requests(out: Console, response: "Sequence[ServedRequest]", *, wide: bool = False) -> None:
    if not response:
        out.print("no requests with a scope since the agent started")
        return
    more = ("SCOPE", "TRIED BEFORE") if wide else ()
    rows = table("AT", "SERVICE", "REQUEST", "ROUTE", "SITE", "STATUS", "TOOK", *more)
    for one in response:
        request = printable(f"{one.method} {one.path}") if wide else one_line(f"{one.method} {one.path}")
        extra = (printable(one.scope), printable(one.fallback or "-")) if wide else ()
        status, took = str(one.status or "aborted"), rounded_ms(one.took_ms)
        rows.add_row(
            short_time(one.at),
            printable(one.service),
            request,
            one.route,
            printable(one.site),
            status,
            took,
            *extra,
        )
    print_table(out, rows)


def _state(one: "ResourceSummary | ReplicantView") -> Text:
    """The status; `deleted` if it is deleted at every site, and `void` if it was never created."""
    word = "void" if one.void else "deleted" if one.deleted else ""
    return styled_status(word if word and one.overall == "CONVERGED" else one.overall)


def draw_operations(out: Console, response: "Sequence[OperationView]", *, wide: bool = False) -> None:
    if not response:
        out.print("no operations")
        return
    more = ("SUPERSEDED BY", "RULE") if wide else ()
    rows = table("OPERATION", "TYPE", "MADE AT", "EFFECT", "SITES", *more, "COMMAND")
    for op in response:
        extra = (op.beaten_by or "-", str(rule_number(op.rule) or "-")) if wide else ()
        command = printable(op.command) if wide else one_line(op.command)
        rows.add_row(
            op.id, printable(op.type), short_time(op.made_at), styled_status(op.effect), _done(op), *extra, command
        )
    print_table(out, rows)


_BAD_REPLIES = (("KO", "failed"), ("UNKNOWN", "unknown"))


def _done(op: "OperationView") -> str:
    """At how many of its sites the operation is finished, and at how many it failed."""
    done = sum(reply.status not in ("PENDING", "RUNNING", "UNKNOWN", "KO") for reply in op.replies)
    counts = [(sum(reply.status == status for reply in op.replies), word) for status, word in _BAD_REPLIES]
    return ", ".join([f"{done}/{len(op.replies)}", *(f"{n} {word}" for n, word in counts if n)])


# -- details -----------------------------------------------------------------------------------------------------


def _draw_facts(out: Console, facts: Iterable[tuple[str, str | Text]]) -> None:
    rows = table("FIELD", "VALUE")
    for name, value in facts:
        rows.add_row(name, printable(value) if isinstance(value, str) else value)
    print_table(out, rows)


def draw_resource(out: Console, response: "ResourceDetail", *, wide: bool = False) -> None:
    _draw_facts(out, _resource_facts(response))
    out.print()
    draw_site_states(out, response.sites, wide=wide)


def _resource_facts(response: "ResourceDetail") -> Iterable[tuple[str, str | Text]]:
    yield "id", response.id
    yield "type", response.type
    yield "status", styled_status(response.overall).append(f": {response.sentence}")
    yield "deleted", yes_no(response.deleted)
    yield "operations", f"{response.operations} known, {response.effective} effective"
    yield "last change", short_time(response.last_change)
    yield "matrix", response.matrix
    yield "order enforced", yes_no(not response.order_not_enforced)
    if response.checkpoint:
        yield "checkpoint", f"contains everything up to {vector(response.checkpoint)}"
    if response.drafts:
        yield "waiting here", ", ".join(response.drafts)


def _replicant_facts(response: "ReplicantView") -> Iterable[tuple[str, str | Text]]:
    yield "id", response.id
    yield "service", response.service
    yield "path", response.path or "-"
    yield "sites", ", ".join(response.sites)
    if response.gone:
        yield "removed sites", ", ".join(response.gone)
    yield "local id here", response.local_id or "-"
    yield "status", styled_status(response.overall)
    yield "deleted", yes_no(response.deleted)
    if response.waits:
        yield "waiting for", response.waits


def _site_facts(site: "SiteView") -> Iterable[tuple[str, str | Text]]:
    yield "site", f"{site.name} (this agent)" if site.here else site.name
    yield "state", styled_status(site.state).append("" if site.here else f", {last_seen(site.as_of_s)}")
    yield "url", site.url
    measured = "measured" if site.rtt_measured else "estimated"
    yield "round trip", f"{rounded_ms(site.rtt_ms)}{f', {measured}' if site.rtt_ms is not None else ''}"
    yield "version", site.version or "-"
    yield "incarnation", site.incarnation or "-"
    yield "services", ", ".join(site.services) or "-"
    yield "clock", "-" if site.clock_offset_ms is None else f"{site.clock_offset_ms:+.0f} ms relative to ours"
    for problem in site.problems:
        yield "problem", problem


def draw_operation(out: Console, op: "OperationView") -> None:
    _draw_facts(out, _operation_facts(op))
    out.print()
    rows = table("SITE", "STATUS", "AT", "TOOK", "DETAIL", "OUTPUT")
    for reply in op.replies:
        again = " (replay)" if reply.replayed else ""
        took = "-" if reply.took_ms is None else f"{reply.took_ms} ms"
        status = styled_status(reply.status).append(again)
        missing = f"not here: {reply.output_missing}" if reply.output_missing else "-"
        detail, output = one_line(reply.detail, 200) or "-", printable_lines(reply.output) or missing
        rows.add_row(reply.site, status, short_time(reply.at), took, detail, output)
    print_table(out, rows)


def _operation_facts(op: "OperationView") -> Iterable[tuple[str, str | Text]]:
    yield "operation", f"{op.id} on {op.resource}"
    yield "type", op.type if op.kind == "normal" else f"{op.type} ({op.kind})"
    yield "command", op.command or "-"
    for name, content in op.files.items():
        yield "file", f"{name}, SHA-256 {content}"
    yield "made at", f"{op.origin}, {short_time(op.made_at)}"
    yield "knew of", vector(op.knows)
    if op.sites is not None:
        yield "sites", ", ".join(op.sites)
    yield "matrix", op.matrix
    yield "at its origin", (op.verdict or "not run yet") + (f": {op.why}" if op.why else "")
    yield "effect", _effect_text(op)


def _effect_text(op: "OperationView") -> Text:
    by = f" by {op.beaten_by}" if op.beaten_by else ""
    why = f": {rule_text(op.rule, op.sentence)}" if op.rule is not None else ""
    return styled_status(op.effect).append(by + why)
