"""`cheops describe …`: everything that is known of one thing."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.asking import IdArgument, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit_answer, print_table, table
from cheops.cli.site_views import NameArgument
from cheops.cli.status import draw_sites
from cheops.cli.words import age, coloured, moment, one_line, printable_lines, rounded_ms, vector, yes_no
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import OperationView, ReplicantView, ResourceDetail, SiteView

app = typer.Typer(
    no_args_is_help=True, help="Show everything that is known of one resource, site, operation or replicant."
)


@app.command("resource", epilog="Example: cheops describe resource counter")
def resource_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show a resource: where it is, how it is there, and by which matrix its operations combine."""
    found = agent(url).resource(id_)
    emit_answer(output, found, lambda out: draw_resource(out, found, wide=output is Output.WIDE))


@app.command("site", epilog="Example: cheops describe site site2")
def site_command(name: NameArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show a site as the agent knows it."""
    found = agent(url).site(name)
    emit_answer(output, found, lambda out: _draw_facts(out, _site_facts(found)))


@app.command("operation", epilog="Example: cheops describe operation counter site1:3")
def operation_command(
    id_: IdArgument,
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", show_default=False, help="Its name, such as site1:3.")
    ],
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show an operation: what it is, what it knew, what beat it, and what became of it at each site."""
    found = agent(url).operation(id_, operation)
    emit_answer(output, found, lambda out: draw_operation(out, found))


@app.command("replicant", epilog="Example: cheops describe replicant c4e095a1-a357-8d5c-85fc-1e35020baf87")
def replicant_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show a replicated HTTP resource: where it is, and how this site's own service calls it."""
    found = agent(url).replicant(id_)
    emit_answer(output, found, lambda out: _draw_facts(out, _replicant_facts(found)))


def _draw_facts(out: Console, facts: Iterable[tuple[str, str | Text]]) -> None:
    made = table("FIELD", "VALUE")
    for name, value in facts:
        made.add_row(name, printable(value) if isinstance(value, str) else value)
    print_table(out, made)


def draw_resource(out: Console, found: "ResourceDetail", *, wide: bool = False) -> None:
    _draw_facts(out, _resource_facts(found))
    out.print()
    draw_sites(out, found.sites, wide=wide)


def _resource_facts(found: "ResourceDetail") -> Iterable[tuple[str, str | Text]]:
    yield "id", found.id
    yield "type", found.type
    yield "status", coloured(found.overall).append(f": {found.sentence}")
    yield "deleted", yes_no(found.deleted)
    yield "operations", f"{found.operations} known, {found.effective} effective"
    yield "last change", moment(found.last_change)
    yield "matrix", found.matrix
    yield "order enforced", yes_no(not found.order_not_enforced)
    if found.checkpoint:
        yield "checkpoint", f"holds all up to {vector(found.checkpoint)}"
    if found.drafts:
        yield "wait here", ", ".join(found.drafts)


def _replicant_facts(found: "ReplicantView") -> Iterable[tuple[str, str | Text]]:
    yield "id", found.id
    yield "service", found.service
    yield "path", found.path or "-"
    yield "sites", ", ".join(found.sites)
    if found.gone:
        yield "gone for good", ", ".join(found.gone)
    yield "local id here", found.local_id or "-"
    yield "status", coloured(found.overall)
    yield "deleted", yes_no(found.deleted)
    if found.waits:
        yield "waits here", found.waits


def _site_facts(site: "SiteView") -> Iterable[tuple[str, str | Text]]:
    yield "site", f"{site.name} (asked)" if site.here else site.name
    yield "state", coloured(site.state).append(f", as of {age(site.as_of_s)}")
    yield "url", site.url
    measured = "measured" if site.rtt_measured else "estimated"
    yield "round trip", f"{rounded_ms(site.rtt_ms)}{f', {measured}' if site.rtt_ms is not None else ''}"
    yield "version", site.version or "-"
    yield "incarnation", site.incarnation or "-"
    yield "services", ", ".join(site.services) or "-"
    yield "clock", "-" if site.clock_offset_ms is None else f"{site.clock_offset_ms:+.0f} ms from ours"
    for problem in site.problems:
        yield "problem", problem


def draw_operation(out: Console, op: "OperationView") -> None:
    _draw_facts(out, _operation_facts(op))
    out.print()
    made = table("SITE", "STATUS", "AT", "TOOK", "DETAIL", "OUTPUT")
    for reply in op.replies:
        again = " (replay)" if reply.replayed else ""
        took = "-" if reply.took_ms is None else f"{reply.took_ms} ms"
        status = coloured(reply.status).append(again)
        detail, output = one_line(reply.detail, 200) or "-", printable_lines(reply.output) or "-"
        made.add_row(reply.site, status, moment(reply.at), took, detail, output)
    print_table(out, made)


def _operation_facts(op: "OperationView") -> Iterable[tuple[str, str | Text]]:
    yield "operation", f"{op.id} on {op.resource}"
    yield "type", op.type if op.kind == "normal" else f"{op.type} ({op.kind})"
    yield "command", op.command or "-"
    for name, content in op.files.items():
        yield "file", f"{name}, SHA-256 {content}"
    yield "made at", f"{op.origin}, {moment(op.made_at)}"
    yield "knew of", vector(op.knows)
    if op.sites is not None:
        yield "sites", ", ".join(op.sites)
    yield "matrix", op.matrix
    yield "at its origin", (op.verdict or "not run yet") + (f": {op.why}" if op.why else "")
    yield "effect", _effect(op)


def _effect(op: "OperationView") -> Text:
    by = f" by {op.beaten_by}" if op.beaten_by else ""
    why = f": {op.sentence} (rule {op.rule})" if op.rule is not None else ""
    return coloured(op.effect).append(by + why)
