"""What `cheops exec --dry-run` shows."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from cheops.cli.output import print_table, table
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import DryRun


def draw_dry_run(out: Console, found: "DryRun") -> None:
    """Where, what it would beat, what would be run again, who would not get it now."""
    if found.refused:
        out.print(Text.assemble(("it would be refused: ", "red"), printable(found.refused)), soft_wrap=True)
        return
    facts = table("IT WOULD", "")
    facts.add_row("run at", ", ".join(found.sites))
    facts.add_row("run first at", found.first_at or "-")
    facts.add_row("run here", ", ".join(found.runs_here) or "nothing")
    facts.add_row("command", printable(found.command))
    for site, again in found.replayed.items():
        if again:
            facts.add_row(f"run again at {site}", ", ".join(again))
    facts.add_row("wait for", ", ".join(found.unreachable) or "nobody: all sites can be reached")
    print_table(out, facts)
    _draw_superseded(out, found)
    if found.order_not_enforced:
        out.print("its order among the others could not be enforced", style="red")
    for note in found.notes:
        out.print(f"note: {printable(note)}", style="yellow", soft_wrap=True)
    out.print("\nNothing was run, saved or sent.", style="dim")


def _draw_superseded(out: Console, found: "DryRun") -> None:
    out.print()
    if found.superseded_by:
        own = found.superseded_by
        words = (
            f"it would have no effect itself: {own.operation} supersedes it, {own.sentence} (rule {own.rule})"
        )
        out.print(words, style="red", soft_wrap=True)
    for one in found.would_supersede:
        out.print(f"supersedes {one.operation}: {one.sentence} (rule {one.rule})", soft_wrap=True)
    if not found.would_supersede:
        out.print("supersedes nothing")
