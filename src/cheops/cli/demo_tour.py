"""`cheops demo --tour`: scope-lang in five commands, on four example sites. Nothing is started."""

import shlex
import sys
from dataclasses import dataclass
from importlib.resources import as_file, files

import typer

from cheops.cli.output import complain, console
from cheops.errors import CheopsError


@dataclass(frozen=True, slots=True)
class Step:
    """What the visitor should look for, and the command that shows it; {sites} is the file of sites."""

    says: str
    command: str


STEPS = (
    Step(
        "A request says where it is executed. Here: servers at paris, made from the images of lyon.",
        "cheops scope parse '{compute: paris, image: lyon}'",
    ),
    Step(
        "Before anything runs, Cheops says what it would do. One image, replicated at two sites:",
        "cheops scope explain '{image: paris & lyon}' --sites {sites}",
    ),
    Step(
        "Stay near: whatever has the service within 10 ms of paris, nearest first.",
        "cheops scope explain '{compute: around(paris, 10ms)}' --sites {sites}",
    ),
    Step(
        "brest is cut off. Replicas catch up when it is back; a strong level goes on with a majority.",
        "cheops scope explain '{image: strong(paris & lyon & brest)}' --sites {sites}",
    ),
    Step(
        "A mistake is refused, with the place and what was probably meant.",
        "cheops scope explain '{image: paris & loyn}' --sites {sites}",
    ),
)


def play_tour(context: typer.Context) -> None:
    out = console()
    with as_file(files("cheops.cli") / "demo_sites.yaml") as sites:
        for number, step in enumerate(STEPS, 1):
            out.print(f"\n{number}. {step.says}", style="bold", soft_wrap=True)
            out.print(f"$ {step.command.replace('{sites}', 'sites.yaml')}\n", style="green", soft_wrap=True)
            _run(context, step.command.replace("{sites}", shlex.quote(str(sites))))
        out.print("\nNow you: try your own scope against the same four sites.", style="bold", soft_wrap=True)
        out.print(f"  cheops scope explain 'lyon ; paris' --service compute --sites {sites}", soft_wrap=True)


def _run(context: typer.Context, command: str) -> None:
    """Run a command line of ours in this process, errors shown as the command itself would."""
    root = context.find_root().command
    try:
        root.main(args=shlex.split(command)[1:], prog_name="cheops", standalone_mode=False)
    except CheopsError as error:
        sys.stdout.flush()
        complain(error)
