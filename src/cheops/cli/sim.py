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
from cheops.sim.large_workload import LEAST_SITES
from cheops.sim.simulation import SimulationResult, play, shrink, timeline
from cheops.sim.workload import PROFILES, Profile
from cheops.text import listed

_SHOWN = 5
_SEEDS = 100
_USUAL, _LARGE = "hostile", "large"
_MOST_SITES = 50  # of a world in which every site sees every other one


def sim_command(  # noqa: PLR0913, PLR0917 - one per option
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many histories to run.", show_default="100, or 1 of a large mesh")
    ] = None,
    sites: Annotated[int, typer.Option(min=2, max=1_000, help="How many sites each history has.")] = 3,
    seed: Annotated[int | None, typer.Option(help="Run only this history, and print its events.")] = None,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    profile: Annotated[
        str | None,
        typer.Option(
            help=f"Which faults to inject: {', '.join(PROFILES)}.",
            show_default=f"{_USUAL}, or {_LARGE} for more than {_MOST_SITES} sites",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.", show_default="one per core")] = os.cpu_count() or 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate sites with network faults, crashes and skewed clocks, and check the invariants.

    Runs the production engine through random histories, each repeatable by its seed. No acknowledged operation may be
    lost, all sites must end equal, causes run before effects, nothing is applied twice, no uninvolved site receives
    anything, and the system comes to rest after the network has healed. With more than 50 sites it plays one large
    mesh, and checks what an operation, a heartbeat and a new site cost.
    """
    chosen = _chosen(profile, sites)
    if chosen.large:
        _play_large(seed if seed is not None else first, sites, chosen, output)
        return
    if seed is not None:
        _play_one(seed, sites, chosen, output)
        return
    seeds = seeds or _SEEDS
    outcomes = list(_progress(_played(range(first, first + seeds), sites, chosen, jobs), seeds))
    failures = [outcome for outcome in outcomes if outcome.problems]
    emit(output, _data(outcomes, failures), lambda out: _show(out, outcomes, failures, sites, chosen))
    if failures:
        raise typer.Exit(1)


def _chosen(name: str | None, sites: int) -> Profile:
    """Raises ClientError."""
    name = name or (_LARGE if sites > _MOST_SITES else _USUAL)
    chosen = PROFILES.get(name)
    if chosen is None:
        raise ClientError(f"unknown profile '{name}'\n  Known profiles: {listed(PROFILES)}.")
    if sites > _MOST_SITES and not chosen.large:
        raise ClientError(f"profile '{name}' plays at most {_MOST_SITES} sites; use --profile {_LARGE} for more")
    if sites < LEAST_SITES and chosen.large:
        raise ClientError(f"profile '{name}' plays at least {LEAST_SITES} sites")
    return chosen


def _play_large(seed: int, sites: int, profile: Profile, output: Output) -> None:
    outcome = play(seed, sites, profile)
    emit(output, _large_data(outcome), lambda out: _show_large(out, outcome, sites, profile))
    if outcome.problems:
        raise typer.Exit(1)


def _large_data(outcome: SimulationResult) -> dict[str, Any]:
    measures = [{"what": one.what, "found": one.found, "budget": one.budget} for one in outcome.measures]
    return {**_data([outcome], [outcome] if outcome.problems else []), "measures": measures}


def _show_large(out: Console, outcome: SimulationResult, sites: int, profile: Profile) -> None:
    injected = table("PLAYED", "TIMES")
    for kind, times in sorted(outcome.injected.items()):
        injected.add_row(kind, f"{times:,}")
    print_table(out, injected)
    measured = table("MEASURED", "FOUND", "BUDGET", "")
    for one in outcome.measures:
        measured.add_row(one.what, f"{one.found:,.1f}", f"{one.budget:,.1f}", "" if one.is_kept else "broken")
    out.print()
    print_table(out, measured)
    words = f"{len(outcome.problems):,} problems" if outcome.problems else "all invariants hold, all budgets are kept"
    out.print(
        f"\n{sites:,} sites, profile {profile.name}, seed {outcome.seed}: "
        f"{outcome.operations:,} operations decided; {words}",
        style="red" if outcome.problems else "green",
        soft_wrap=True,
    )
    for problem in outcome.problems[:_SHOWN]:
        out.print(f"violated: {problem}", style="red", soft_wrap=True)


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
