"""One declaration gives a setting its key, its reader with complaints, its default and its documentation."""

from dataclasses import dataclass, replace
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.config.settings import (
    REQUIRED,
    Section,
    alternatives,
    inline,
    is_set,
    named_sections,
    place,
    read_section,
    section,
    setting,
    settings_of,
    walk,
)
from cheops.config.values import BOOLEAN, COUNT, DURATION, SIZE, TEXT, duration, duration_text, size_text
from cheops.yaml_file import Value, YamlFileError, parse_yaml
from tests.config.reference import settings_by_path


@dataclass(frozen=True, slots=True)
class Tuning(Section):
    buffer_bytes: int = setting(SIZE, 4096, "Size of the buffer.", key="buffer_size")
    eager: bool = setting(BOOLEAN, False, "Whether to start at once.")


@dataclass(frozen=True, slots=True)
class Pump(Section):
    name: str
    source: str = alternatives(tank=(TEXT, "Pump from a tank."), river=(TEXT, "Pump from a river."))
    litres: int = setting(COUNT, REQUIRED, "How much to pump.")
    pause_s: float = setting(DURATION, 90.0, "How long to wait between two strokes.")
    tuning: Tuning = inline(Tuning)

    def complete(self, value: Value) -> Self:
        if self.tuning.eager and is_set(value, "pause"):
            raise place(value, "pause").fail("an eager pump does not pause")
        return replace(self, pause_s=0.0) if self.tuning.eager else self


@dataclass(frozen=True, slots=True)
class Plant(Section):
    pumps: dict[str, Pump] = setting(named_sections(Pump), {}, "The pumps, by name.")
    spare: Tuning | None = setting(section(Tuning), None, "For a spare pump.")


def read(text: str) -> Plant:
    return read_section(Plant, parse_yaml(text, "plant.yaml"))


def test_a_section_is_read_from_its_declarations() -> None:
    assert read("pumps: {a: {tank: t, litres: 3}, b: {river: r, litres: 4, eager: true, buffer_size: 1KiB}}") == Plant(
        {"a": Pump("a", "t", 3), "b": Pump("b", "r", 4, 0.0, Tuning(1024, eager=True))}
    )
    assert read("spare: {eager: yes}") == Plant({}, Tuning(eager=True))


@pytest.mark.parametrize(
    ("pump", "complaint"),
    [
        ("{tank: t}", "1: pumps.a: 'litres' is missing"),
        ("{tank: t, litres: 0}", "1: pumps.a.litres: expected a whole number from 1 to 1,000,000, found '0'"),
        (
            "{tank: t, litres: 1,\n  pauses: 1s}",
            (
                "2: pumps.a.pauses: unknown key; did you mean 'pause'? "
                "Known here: buffer_size, eager, litres, pause, river, tank"
            ),
        ),
        ("{litres: 1}", "1: pumps.a: expected exactly one of tank, river; found none"),
        ("{litres: 1, tank: t, river: r}", "1: pumps.a: expected exactly one of tank, river; found tank and river"),
        ("{litres: 1, tank: t, eager: on,\n  pause: 1s}", "2: pumps.a.pause: an eager pump does not pause"),
    ],
)
def test_complaints_have_file_and_line(pump: str, complaint: str) -> None:
    with pytest.raises(YamlFileError) as error:
        read(f"pumps: {{a: {pump}}}")
    assert str(error.value) == f"plant.yaml:{complaint}"


def test_documentation_follows_from_the_declarations() -> None:
    assert {path: one.default_text for path, one in walk(settings_of(Plant))} == {
        "pumps": "none",
        "pumps.NAME.tank": "none",
        "pumps.NAME.river": "none",
        "pumps.NAME.litres": "required",
        "pumps.NAME.pause": "`90s`",
        "pumps.NAME.buffer_size": "`4KiB`",
        "pumps.NAME.eager": "`false`",
        "spare": "none",
        "spare.buffer_size": "`4KiB`",
        "spare.eager": "`false`",
    }


def test_every_setting_is_explained_in_sentences_that_fit_a_table() -> None:
    for path, one in settings_by_path().items():
        assert one.doc.endswith((".", "…")), path
        assert not set("|\n") & set(one.doc + one.type.name + one.default_text), path


def value(text: str) -> Any:
    return parse_yaml(text, "x.yaml")


@given(st.integers(1, 86_400_000))
def test_a_duration_is_read_as_it_is_written(ms: int) -> None:
    assert DURATION.read(value(duration_text(ms / 1_000))) == ms / 1_000


def test_a_duration_may_have_limits_of_its_own() -> None:
    pause = duration(0.1, 60.0)
    assert (pause.name, duration(maximum_s=1.5).name, DURATION.name) == (
        "duration, from 100ms, up to 1m",
        "duration, up to 1500ms",
        "duration",
    )
    assert (pause.read(value("100ms")), pause.read(value("60s"))) == (0.1, 60.0)
    for wrong in ("99ms", "61s", "100.5ms"):
        with pytest.raises(YamlFileError, match=f"expected whole milliseconds from 100ms to 1m, found '{wrong}'"):
            pause.read(value(wrong))


@given(st.integers(1, 2**50))
def test_a_size_is_read_as_it_is_written(number: int) -> None:
    assert SIZE.read(value(size_text(number))) == number
