"""Sections of the page of benchmarks: what they say follows from their numbers, and is written with them."""

from pathlib import Path

import pytest

from bench.charts import BarChart, Row
from bench.fastpath import DIRECT, ENVOY, HAPROXY, TWO_TLS, Kind, Measurement, section, targets
from bench.report import Section, write

PAGE = "# Page\n\nbefore\n\n<!-- one -->\nold\n<!-- /one -->\n\nafter\n"
PICTURE = BarChart("What it shows", ("things",), (Row("a", ((1, "1"),)),))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_section_replaces_what_stood_between_its_marks_and_nothing_else(page: Path) -> None:
    for _ in range(2):
        write(Section("one", ("a", "b"), (("1", "2"),), about="How.", picture=PICTURE), "a machine", page)
    assert page.read_text() == (
        "# Page\n\nbefore\n\n<!-- one -->\n\nHow.\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n"
        "![What it shows](pictures/bench/one.svg)\n\nMeasured on a machine.\n<!-- /one -->\n\nafter\n"
    )
    assert (page.parent / "pictures" / "bench" / "one.svg").read_text() == PICTURE.svg()


def test_a_section_that_is_new_is_added_with_its_title(page: Path) -> None:
    write(Section("two", ("a",), (("1",),), "Two", "How."), "a machine", page)
    assert page.read_text().startswith(PAGE.rstrip())
    assert "\n## Two\n\n<!-- two -->\n\nHow.\n\n| a |" in page.read_text()
    with pytest.raises(ValueError, match="no place for 'three'"):
        write(Section("three", ("a",), ()), "a machine", page)


# -- the fast path ----------------------------------------------------------------------------------------

REFERENCES = (
    Measurement(DIRECT, Kind.REFERENCE, 40_000, 0.0001, 0.001, None),
    Measurement(HAPROXY, Kind.REFERENCE, 20_000, 0.0002, 0.002, 0.00003),
    Measurement(TWO_TLS, Kind.REFERENCE, 10_000, 0.0003, 0.003, 0.0001),
    Measurement(ENVOY, Kind.REFERENCE, 5_000, 0.0004, 0.004, 0.0002),
)


def measured(kind: Kind, *rates: float) -> list[Measurement]:
    return [Measurement(f"{kind.name} {rate}", kind, rate, 0.00025, 0.0025, 0.00004) for rate in rates]


def test_the_table_and_the_picture_have_the_same_numbers() -> None:
    ways = [*REFERENCES, *measured(Kind.LOCAL, 19_500)]
    result = section(ways, 32, "How.", is_secure=True)
    assert result.name == "fastpath-tls"
    assert result.rows[0] == (DIRECT, "40,000", "2.00 x", "8.00 x", "", "", "")
    assert result.rows[-1] == ("LOCAL 19500", "19,500", "0.97 x", "3.90 x", "150 µs", "1.5 ms", "40 µs")
    assert isinstance(result.picture, BarChart)
    assert [row.values for row in result.picture.rows][0::4] == [
        ((40_000, "40,000"), None),
        ((19_500, "19,500"), (0.00004, "40 µs")),
    ]
    assert [mark.value for mark in result.picture.marks] == [10_000, 19_000]
    assert "How." in result.about


def test_what_is_said_of_the_targets_follows_from_the_numbers() -> None:
    said = targets([*REFERENCES, *measured(Kind.LOCAL, 19_000, 21_000), *measured(Kind.SHARED, 8_000, 12_000)])
    assert said == (
        "Local requests per second: 0.95 to 1.05 times plain HAProxy (target 0.95: reached), "
        "3.80 to 4.20 times plain Envoy (target 2: reached). "
        "Shared requests per second: 0.40 to 0.60 times plain HAProxy (target 0.95: not reached), "
        "1.60 to 2.40 times plain Envoy (target 2: reached by some), "
        "0.80 to 1.20 times two plain HAProxies in a row."
    )


def test_a_proxy_that_is_not_installed_is_said_to_be_missing() -> None:
    ways = [*REFERENCES[:2], *measured(Kind.LOCAL, 19_500)]
    result = section(ways, 32, "How.", is_secure=False)
    assert {row[3] for row in result.rows} == {"not installed"}
    assert "Envoy" not in result.about
