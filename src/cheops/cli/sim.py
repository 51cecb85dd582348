"""`cheops sim`: run the engine through many random histories with faults, and check its invariants."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cheops.cli.output import Output, OutputOption, console, emit, print_table, table
from cheops.errors import ClientError
from cheops.sim.simulation import SimulationResult, play, shrink, timeline
from cheops.sim.workload import PROFILES, Profile
from cheops.text import listed

_SHOWN = 5


def sim_command(  # noqa: PLR0913, PLR0917 - one per option
    seeds: Annotated[int, typer.Option(min=1, help="How many histories to run.")] = 100,
    sites: Annotated[int, typer.Option(min=2, max=50, help="How many sites each history has.")] = 3,
    seed: Annotated[int | None, typer.Option(help="Run only this history, and print its events.")] = None,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    profile: Annotated[str, typer.Option(help=f"Which faults to inject: {', '.join(PROFILES)}.")] = "hostile",
    jobs: Annotated[int, typer.Option(min=1, help="Processes.", show_default="one per core")] = os.cpu_count() or 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate sites with network faults, crashes and skewed clocks, and check the invariants.

    Runs the production engine through random histories, each repeatable by its seed. No acknowledged operation may be
    lost, all sites must end equal, causes run before effects, nothing is applied twice, no uninvolved site receives
    anything, and the system comes to rest after the network has healed.
    """
    chosen = PROFILES.get(profile)
    if chosen is None:
        raise ClientError(f"unknown profile '{profile}'\n  Known profiles: {listed(PROFILES)}.")
    if seed is not None:
        _play_one(seed, sites, chosen, output)
        return
    outcomes = list(_progress(_played(range(first, first + seeds), sites, chosen, jobs), seeds))
    failures = [outcome for outcome in outcomes if outcome.problems]
    emit(output, _data(outcomes, failures), lambda out: _show(out, outcomes, failures, sites, chosen))
    if failures:
        raise typer.Exit(1)


def _play(arguments: tuple[int, int, Profile]) -> SimulationResult:
    return play(*arguments)


def _played(seeds: Iterable[int], sites: int, profile: Profile, jobs: int) -> Iterator[SimulationResult]:
    work = [(seed, sites, profile) for seed in seeds]
    if jobs == 1 or len(work) < 4:  # so few are done before the processes have started
        yield from map(_play, work)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_play, work, chunksize=max(1, min(20, len(work) // (jobs * 4))))


def _progress(outcomes: Iterator[SimulationResult], total: int) -> Iterator[SimulationResult]:
    """Show a progress bar on a terminal."""
    columns = (TextColumn("histories"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    out = console(stderr=True)
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task("", total=total)
        for outcome in outcomes:
            progress.advance(task)
            yield outcome


def _data(outcomes: list[SimulationResult], failures: list[SimulationResult]) -> dict[str, Any]:
    return {
        "histories": len(outcomes),
        "operations": sum(outcome.operations for outcome in outcomes),
        "replayed_runs": sum(outcome.replays for outcome in outcomes),
        "injected": dict(sorted(_injected(outcomes).items())),
        "failures": [{"seed": failure.seed, "problems": list(failure.problems)} for failure in failures],
    }


def _injected(outcomes: list[SimulationResult]) -> Counter[str]:
    total: Counter[str] = Counter()
    for outcome in outcomes:
        total += outcome.injected
    return total


def _show(
    out: Console, outcomes: list[SimulationResult], failures: list[SimulationResult], sites: int, profile: Profile
) -> None:
    injected = table("INJECTED", "TIMES")
    for kind, times in sorted(_injected(outcomes).items()):
        injected.add_row(kind, f"{times:,}")
    print_table(out, injected)
    operations = sum(outcome.operations for outcome in outcomes)
    replays = sum(outcome.replays for outcome in outcomes)
    out.print(
        f"\n{len(outcomes):,} histories, {sites} sites, profile {profile.name}: "
        f"{operations:,} operations decided, {replays:,} runs in replays, {len(failures):,} failed",
        style="red" if failures else "green",
        soft_wrap=True,
    )
    for failure in failures[:_SHOWN]:
        out.print(f"  seed {failure.seed}: {failure.problems[0]}", soft_wrap=True)
    if failures:
        _show_smallest(out, failures[0].seed, sites, profile)


def _show_smallest(out: Console, seed: int, sites: int, profile: Profile) -> None:
    smallest, outcome = shrink(seed, sites, profile)
    out.print(f"\nthe shortest failing history of seed {seed} ({smallest.operations} operations):", style="bold")
    _show_story(out, outcome, sites)
    again = f"cheops sim --seed {seed} --sites {sites} --profile {profile.name}"
    out.print(f"\nto run all of it: {again}", soft_wrap=True)


def _play_one(seed: int, sites: int, profile: Profile, output: Output) -> None:
    outcome = play(seed, sites, profile)
    emit(
        output,
        _data([outcome], [outcome] if outcome.problems else []),
        lambda out: _show_story(out, outcome, sites),
    )
    if outcome.problems:
        raise typer.Exit(1)


def _show_story(out: Console, outcome: SimulationResult, sites: int) -> None:
    out.print(timeline(outcome.story, [f"site{number}" for number in range(1, sites + 1)]), soft_wrap=True)
    out.print()
    for problem in outcome.problems:
        out.print(f"violated: {problem}", style="red", soft_wrap=True)
    if not outcome.problems:
        out.print("all invariants hold", style="green")
