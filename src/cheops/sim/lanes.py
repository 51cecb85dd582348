"""A simulated history as a picture in text: one lane per site, time downwards."""

from collections.abc import Iterable

_WIDTH = 30


def lanes(story: Iterable[str], sites: list[str], most: int = 60) -> str:
    """The last events, each in the lane of its site; what concerns all stands across."""
    rows = [_row(line, sites) for line in list(story)[-most:]]
    head = " " * 12 + "".join(site.ljust(_WIDTH) for site in sites)
    return "\n".join([head.rstrip(), " " * 12 + "".join("│".ljust(_WIDTH) for _ in sites).rstrip(), *rows])


def _row(line: str, sites: list[str]) -> str:
    time, _, what = line.partition(" ms  ")
    place = next((n for n, site in enumerate(sites) if what.startswith(f"{site} ")), None)
    if place is None:
        return f"{time:>9}   ─── {what} "
    cells = ["│".ljust(_WIDTH)] * len(sites)
    cells[place] = f"● {what.removeprefix(sites[place]).strip()}"[: _WIDTH - 1].ljust(_WIDTH)
    return f"{time:>9}   {''.join(cells)}".rstrip()
