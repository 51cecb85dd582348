"""How single values look in tables: statuses in colour, ages, times, output of commands."""

from rich.text import Text

from cheops.text import printable, shortened

_COLOURS = {
    "green": ("OK", "CONVERGED", "up", "effective", "ok"),
    "yellow": ("PENDING", "RUNNING", "CONVERGING", "UNREACHABLE", "suspect", "TIMEOUT", "warning", "unknown"),
    "red": ("KO", "DIVERGED", "UNKNOWN", "down", "failed"),
    "dim": ("SUPERSEDED", "VOID", "superseded", "void", "folded", "silent", "forgotten"),
}
_STYLES = {word: colour for colour, words in _COLOURS.items() for word in words}
_MINUTE_S = 60.0
_HOUR_S = 3600.0


def coloured(word: str) -> Text:
    """A status in the colour of its meaning."""
    return Text(word, style=_STYLES.get(word, ""))


def age(seconds: float | None) -> str:
    """How long ago: `now`, `12 s ago`, `3 min ago`; `never`."""
    if seconds is None:
        return "never"
    if seconds < 1:
        return "now"
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s ago"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min ago"
    return f"{seconds / _HOUR_S:.1f} h ago"


def moment(at: str | None) -> str:
    """A time of the API, for people: to the second."""
    return "-" if at is None else at.replace("T", " ").split(".")[0].removesuffix("Z")


def rounded_ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


def yes_no(value: bool) -> str:
    return "yes" if value else "no"


def printable_lines(text: str) -> str:
    """What a command printed, harmless for a terminal."""
    return "\n".join(map(printable, text.rstrip("\n").splitlines()))


def one_line(text: str, most: int = 60) -> str:
    """A foreign text as one short line of a table."""
    return printable(shortened(" ".join(text.split()), most))


def vector(numbers: dict[str, int]) -> str:
    return ", ".join(f"{site}:{number}" for site, number in numbers.items()) or "-"
