"""`cheops verify`: the real state of the application at every site, compared."""

import shlex
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.asking import FAILED, NOT_YET, IdArgument, ShowingOption, TimeoutOption, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit_answer, print_table, table
from cheops.cli.words import coloured, one_line, printable_lines
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import Verification

_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def verify_command(
    id_: IdArgument,
    command: ShowingOption = "",
    timeout: TimeoutOption = 30.0,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the real state of the application at every site of a resource, and show how it differs.

    Runs the type's read command everywhere, past all that Cheops believes. Ends with 0 if all are the same, 1
    if they differ or one cannot be read, 3 if those that answered are the same but one did not.
    """
    found = agent(url).verify(id_, command, timeout)
    emit_answer(output, found, lambda out: draw_verification(out, found, wide=output is Output.WIDE))
    raise typer.Exit(verdict_code(found))


def verdict_code(found: "Verification") -> int:
    if found.same:
        return 0
    answered = [state for state in found.states if state.status != "TIMEOUT"]
    agree = len({state.output for state in answered}) <= 1 and all(s.status == "OK" for s in answered)
    return NOT_YET if agree and len(answered) < len(found.states) else FAILED


def draw_verification(out: Console, found: "Verification", *, wide: bool = False) -> None:
    made = table("SITE", "STATUS", "STATE")
    for state in found.states:
        text = printable_lines(state.output) if wide else one_line(state.output)
        made.add_row(state.site, coloured(state.status), text)
    print_table(out, made)
    for site, lines in found.diff.items():
        out.print(f"\nhow {site} differs from {found.states[0].site}:", style="bold")
        for line in lines:
            out.print(Text(printable(line.rstrip("\n")), _DIFF_STYLES.get(line[:1], "")), soft_wrap=True)
    out.print()
    out.print(_verdict(found), style="green" if found.same else "red", soft_wrap=True)


def _verdict(found: "Verification") -> str:
    if found.same:
        sites = [state.site for state in found.states]
        return f"the same at all {len(sites)} sites" if len(sites) > 1 else f"only at {sites[0]}"
    silent = [state.site for state in found.states if state.status == "TIMEOUT"]
    if verdict_code(found) == NOT_YET:
        return f"no answer from {', '.join(silent)}; the others have the same"
    id_ = shlex.quote(printable(found.resource))
    return (
        f"the sites differ; why: cheops explain {id_}\n"
        "  If that says CONVERGED, something has changed the application past Cheops. To make the sites "
        f"equal: cheops exec --force --id {id_} …"
    )
