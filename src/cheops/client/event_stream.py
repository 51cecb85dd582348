"""Server-sent events, line by line. Only what our agents send: `id`, `event` and one line of `data`."""

from collections.abc import Iterable, Iterator

from cheops.api.models import Event, from_json

_DATA = b"data:"


def event_in(line: bytes) -> Event | None:
    """The event that a line of a stream holds. Comments, which keep a connection alive, hold none."""
    return from_json(line[len(_DATA) :].strip(), Event) if line.startswith(_DATA) else None


def events_in(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        if event := event_in(line):
            yield event
