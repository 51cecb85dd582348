"""Pictures of benchmarks: what they show is what was measured."""

import xml.etree.ElementTree as ET

import pytest

from bench.charts import BarChart, Mark, Row, Scale

_SVG = "{http://www.w3.org/2000/svg}"


def drawn(bars: BarChart) -> ET.Element:
    return ET.fromstring(bars.svg())  # noqa: S314 - our own


def texts(root: ET.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{_SVG}text")]


def lengths(root: ET.Element) -> list[float]:
    return [float(one.attrib["width"]) for one in root.iter(f"{_SVG}rect") if one.get("class") != "page"]


def of(*values: float | None, marks: tuple[Mark, ...] = ()) -> BarChart:
    rows = tuple(Row(f"row {n}", (None if v is None else (v, f"{v:g}"),)) for n, v in enumerate(values))
    return BarChart("title", ("things",), rows, marks)


def test_bars_are_in_proportion() -> None:
    one, two, four = lengths(drawn(of(100, 200, 400)))
    assert two == pytest.approx(2 * one, abs=0.2)
    assert four == pytest.approx(4 * one, abs=0.2)


def test_each_quantity_has_its_own_scale() -> None:
    rows = (Row("a", ((10, "10"), (0.001, "1 ms"))), Row("b", ((5, "5"), (0.002, "2 ms"))))
    long, short, half, whole = lengths(drawn(BarChart("t", ("rate", "time"), rows)))
    assert long == whole == pytest.approx(2 * short, abs=0.2) == pytest.approx(2 * half, abs=0.2)


def test_what_is_far_longer_than_the_others_is_cut_and_says_its_value() -> None:
    root = drawn(of(10, 20, 30, 40, 2_000))
    ten, *_, forty, cut = lengths(root)
    assert forty == pytest.approx(4 * ten, abs=0.2)
    assert forty < cut < 2 * forty
    assert len([one for one in root.iter(f"{_SVG}path") if one.get("class") == "cut"]) == 1
    assert "2000" in texts(root)


def test_what_is_far_shorter_cuts_nothing() -> None:
    scale = Scale.of([1, 2, 40_000, 50_000, 100_000], 100)
    assert not scale.is_cut(100_000)


def test_names_and_values_are_text_whatever_they_hold() -> None:
    row = Row('<b> & "c"', ((1, "<1 & 2>"),))
    root = drawn(BarChart('"title" <&>', ("<q>",), (row,), (Mark(0, 1, "<m>"),)))
    assert root.attrib["aria-label"] == '"title" <&>'
    assert texts(root) == ['"title" <&>', '<b> & "c"', "<q>", "<1 & 2>", "<m>"]


def test_a_mark_stands_where_a_bar_of_its_value_ends() -> None:
    root = drawn(of(100, 200, marks=(Mark(0, 100, "here"), Mark(0, 300, "further than all"))))
    bars = [one for one in root.iter(f"{_SVG}rect") if one.get("class") != "page"]
    end = float(bars[0].attrib["x"]) + float(bars[0].attrib["width"])
    places = {one.text: float(one.attrib["x"]) for one in root.iter(f"{_SVG}text")}
    assert places["here"] == pytest.approx(end, abs=0.2)
    assert places["further than all"] > end * 1.2


def test_what_has_no_value_has_no_bar() -> None:
    root = drawn(of(None, 5))
    assert len(lengths(root)) == 1
    assert {"row 0", "row 1"} <= set(texts(root))
