"""`cheops status` and `cheops wait`: is all well with a resource, and tell me when it is."""

import shlex
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.asking import FAILED, NOT_YET, IdArgument, TimeoutOption, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit_answer, print_table, table
from cheops.cli.words import age, coloured
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import ResourceStatus, SiteStatus

_LOOK_AGAIN_S = 0.2
_CODES = {"CONVERGED": 0, "DIVERGED": FAILED, "CONVERGING": NOT_YET, "UNREACHABLE": NOT_YET}


class Condition(StrEnum):
    CONVERGED = "converged"


def status_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Say in one call whether all sites of a resource have applied the same, and who has not.

    Ends with 0 if it is CONVERGED, 1 if DIVERGED, 3 if something is on its way or a site cannot be asked.
    """
    found = agent(url).status(id_)
    emit_answer(output, found, lambda out: draw_status(out, found, wide=output is Output.WIDE))
    raise typer.Exit(_CODES[found.overall])


def wait_command(
    id_: IdArgument,
    condition: Annotated[Condition, typer.Option("--for", help="What to wait for.")] = Condition.CONVERGED,
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait until all sites of a resource have applied the same.

    Ends with 0 as soon as it is so; when the time is over, with 1 if it is DIVERGED, else with 3.
    """
    found, is_so = _awaited(id_, condition, timeout, url)
    emit_answer(output, found, lambda out: draw_status(out, found, wide=output is Output.WIDE))
    raise typer.Exit(0 if is_so else _CODES[found.overall] or NOT_YET)


def _awaited(
    id_: str, condition: Condition, timeout: float, url: str | None
) -> "tuple[ResourceStatus, bool]":
    """How it is, and whether that is what was waited for."""
    asked, begun_s = agent(url), time.monotonic()
    while True:
        found = asked.status(id_)
        waited_s = time.monotonic() - begun_s
        is_so = found.overall == condition.upper() and _is_heard(found, waited_s)
        if is_so or waited_s >= timeout:
            return found, is_so
        time.sleep(min(_LOOK_AGAIN_S, timeout - waited_s))


def _is_heard(found: "ResourceStatus", within_s: float) -> bool:
    """Whether every site has spoken since then. What was heard of one before that may have gone away and come
    back since, perhaps with an empty disk."""
    return all(site.as_of_s is not None and site.as_of_s <= within_s for site in found.sites)


def draw_status(out: Console, found: "ResourceStatus", *, wide: bool = False) -> None:
    """The verdict first, then site by site."""
    out.print(
        Text.assemble(coloured(found.overall), f"  {printable(found.id)}: {found.sentence}"), soft_wrap=True
    )
    out.print()
    draw_sites(out, found.sites, wide=wide)
    if found.order_not_enforced:
        out.print("\norder-not-enforced: operations ran here in another order than they count", style="red")
    if found.overall == "DIVERGED":
        id_ = shlex.quote(printable(found.id))
        hint = f"why: cheops explain {id_}   what to do: cheops resolve {id_}"
        out.print(hint, style="dim", soft_wrap=True)


def draw_sites(out: Console, sites: "tuple[SiteStatus, ...]", *, wide: bool) -> None:
    made = table("SITE", "REACHABLE", "AS OF", "PENDING", "FAILED", "UNKNOWN", *(["DIGEST"] if wide else []))
    for site in sites:
        reachable = Text("yes", style="green") if site.reachable else Text("no", style="red")
        counts = (str(site.pending), _names(site.failed), _names(site.unknown))
        digest = [site.digest or "-"] if wide else []
        made.add_row(site.site, reachable, age(site.as_of_s), *counts, *digest)
    print_table(out, made)
    if any(site.failed or site.unknown for site in sites):
        out.print()
    for site in sites:
        for trouble in (*site.failed, *site.unknown):
            out.print(f"{site.site} {trouble.operation}: {printable(trouble.detail)}", soft_wrap=True)


def _names(troubles: "tuple[object, ...]") -> str:
    return ", ".join(str(getattr(trouble, "operation", "")) for trouble in troubles) or "-"
