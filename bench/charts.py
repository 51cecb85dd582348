"""Bar and line charts as SVG, without a library.

Bars of one quantity are in proportion, from zero. A few that are many times as long as most would leave nothing to
see of the others: they are cut, and marked as cut.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from math import ceil, log10

WIDTH = 860
_NAMES, _EDGE, _GAP = 236, 20, 28  # widths: of the names, around everything, between two quantities
_TEXT = 70  # a value's text, behind its bar
_TOP, _ROW, _BAR, _APART = 72, 22, 14, 10  # heights: of title and headings, a row, a bar, between groups
_MARK, _BOTTOM = 18, 14
_FAR = 3.0  # bars are cut that are longer than so many times the next shorter one
_CUT_AT = 1.18  # times that one
_TONES = ("other", "one", "two", "three")
_STYLE = (
    'text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}'
    ".title{font-weight:600;font-size:15px}.head,.value,.mark{font-size:12px;fill:#59636e}"
    ".page{fill:#fff;stroke:#d0d7de}.axis{stroke:#8c959f}.target{stroke:#9a6700;stroke-dasharray:4 3}"
    ".mark{fill:#7d4f00}.cut{stroke:#fff;stroke-width:3;fill:none}"
    ".value,.mark{paint-order:stroke;stroke:#fff;stroke-width:4px}"
    ".other{fill:#8c959f}.one{fill:#0969da}.two{fill:#1a7f37}.three{fill:#8250df}"
    "@media (prefers-color-scheme: dark){"
    "text{fill:#e6edf3}.head,.value{fill:#9198a1}.page{fill:#0d1117;stroke:#3d444d}.axis{stroke:#656c76}"
    ".target{stroke:#d29922}.mark{fill:#d29922}.value,.mark,.cut{stroke:#0d1117}"
    ".other{fill:#656c76}.one{fill:#4493f8}.two{fill:#3fb950}.three{fill:#ab7df8}}"
)


@dataclass(frozen=True)
class Row:
    """A thing and its quantities, each with the text to show; None where it has none."""

    name: str
    values: tuple[tuple[float, str] | None, ...]
    group: int = 0  # things of one group are together and have one colour


@dataclass(frozen=True)
class Mark:
    """A line across the bars of a quantity, such as a target."""

    quantity: int
    value: float
    text: str


@dataclass(frozen=True)
class BarChart:
    title: str
    quantities: tuple[str, ...]
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...] = ()

    def svg(self) -> str:
        """The picture as text."""
        tops = _tops(self.rows)
        end = tops[-1] + _ROW
        height = end + _MARK * len(self.marks) + _BOTTOM
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {self._label()}>',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            f'<text x="{_EDGE}" y="28" class="title">{escape(self.title)}</text>',
            *(
                f'<text x="{_EDGE + _NAMES - 10}" y="{top + 15}" text-anchor="end">{escape(row.name)}</text>'
                for row, top in zip(self.rows, tops, strict=True)
            ),
            *(line for number in range(len(self.quantities)) for line in self._drawn(number, tops, end)),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _label(self) -> str:
        """For screen readers."""
        return f'role="img" aria-label="{escape(self.title)}"'

    def _drawn(self, number: int, tops: Sequence[int], end: int) -> Iterator[str]:
        width = (WIDTH - 2 * _EDGE - _NAMES - _GAP * (len(self.quantities) - 1)) // len(self.quantities)
        left = _EDGE + _NAMES + number * (width + _GAP)
        values = [row.values[number] for row in self.rows]
        marks = [mark for mark in self.marks if mark.quantity == number]
        marks.sort(key=lambda mark: -mark.value)  # so that no line crosses the text of another
        scale = Scale.of([value[0] for value in values if value], width - _TEXT)
        scale = replace(scale, full=max(scale.full, *(mark.value for mark in marks), 0.0))
        yield f'<text x="{left}" y="56" class="head">{escape(self.quantities[number])}</text>'
        bars = [
            _Bar(left, top, scale, value, _TONES[row.group % len(_TONES)])
            for row, value, top in zip(self.rows, values, tops, strict=True)
            if value
        ]
        lines = [
            (mark.text, left + scale.length(mark.value), end + _MARK * (place + 1)) for place, mark in enumerate(marks)
        ]
        for bar in bars:
            yield from bar.drawn()
        yield f'<path class="axis" d="M{left} {_TOP - 4}V{end}"/>'
        # Texts come last, so that they are above the lines.
        yield from (f'<path class="target" d="M{x:g} {_TOP - 4}V{below - 11}"/>' for _, x, below in lines)
        yield from (bar.text() for bar in bars)
        for text, x, below in lines:
            yield f'<text x="{x:g}" y="{below}" class="mark">{escape(text)}</text>'


@dataclass(frozen=True)
class Scale:
    """How long the bar of a value is."""

    full: float  # the value with the longest possible bar
    width: float

    @classmethod
    def of(cls, values: Sequence[float], width: float) -> "Scale":
        """All are in proportion, unless some are far longer than all others of the longer half."""
        ordered = sorted(values)
        for shorter, longer in pairwise(ordered[len(ordered) // 2 :]):
            if longer > _FAR * shorter > 0:
                return cls(shorter * _CUT_AT, width)
        return cls(max(ordered, default=0.0) or 1.0, width)

    def is_cut(self, value: float) -> bool:
        return value > self.full

    def length(self, value: float) -> float:
        return round(min(value / self.full, 1.0) * self.width, 1)


def _tops(rows: Sequence[Row]) -> list[int]:
    """Where each row begins: a little apart from one of another group."""
    tops, at = [], _TOP
    for before, row in zip((None, *rows), rows, strict=False):
        at += _APART if before and before.group != row.group else 0
        tops.append(at)
        at += _ROW
    return tops


@dataclass(frozen=True)
class _Bar:
    left: int
    top: int
    scale: Scale
    value: tuple[float, str]
    tone: str

    @property
    def end(self) -> float:
        return self.left + self.scale.length(self.value[0])

    def drawn(self) -> Iterator[str]:
        y, length = self.top + (_ROW - _BAR) // 2, self.scale.length(self.value[0])
        yield f'<rect class="{self.tone}" x="{self.left}" y="{y}" width="{length}" height="{_BAR}"/>'
        if self.scale.is_cut(self.value[0]):
            yield f'<path class="cut" d="M{self.end - 14:g} {y + _BAR + 2}l6 -{_BAR + 4}"/>'

    def text(self) -> str:
        return f'<text x="{self.end + 6:g}" y="{self.top + 15}" class="value">{escape(self.value[1])}</text>'


_CHART_WIDTH, _CHART_HEIGHT = 640, 380
_CHART_LEFT, _CHART_RIGHT, _CHART_TOP, _CHART_BOTTOM = 64, 20, 20, 84
_TICKS = 6
_DARK = (
    "<style>@media (prefers-color-scheme: dark){rect{fill:#0d1117}text{fill:#e6edf3}"
    'path[stroke="#ddd"]{stroke:#3d444d}}</style>'
)


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    name: str
    colour: str
    points: tuple[Point, ...]
    dashed: bool = False


@dataclass(frozen=True)
class LineChart:
    """Both axes begin at zero."""

    x_label: str
    y_label: str
    series: Sequence[Series]
    title: str = ""

    def svg(self) -> str:
        """The picture as text."""
        points = [point for one in self.series for point in one.points]
        x_step = _step(max(point.x for point in points))
        y_step = _step(max(max(point.y, point.high or 0.0) for point in points))
        scale = _Scale(x_step, y_step)
        size = f'viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {self._label()}font-family="sans-serif" font-size="13">',
            _DARK,
            f'<rect width="{_CHART_WIDTH}" height="{_CHART_HEIGHT}" fill="white"/>',
            *(line for number in range(_TICKS) for line in scale.tick(number)),
            *self._labels(),
            *(line for place, one in enumerate(self.series) for line in _drawn(one, scale, place)),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _label(self) -> str:
        """For screen readers."""
        return f'role="img" aria-label="{escape(self.title)}" ' if self.title else ""

    def _labels(self) -> list[str]:
        middle = (_CHART_LEFT + _CHART_WIDTH - _CHART_RIGHT) / 2
        centre = (_CHART_TOP + _CHART_HEIGHT - _CHART_BOTTOM) / 2
        places = {
            self.x_label: f'x="{middle}" y="{_CHART_HEIGHT - _CHART_BOTTOM + 40}"',
            self.y_label: f'transform="translate(16 {centre}) rotate(-90)"',
        }
        return [f'<text {at} text-anchor="middle">{escape(text)}</text>' for text, at in places.items()]


@dataclass(frozen=True)
class _Scale:
    x_step: float
    y_step: float

    def x(self, value: float) -> float:
        share = value / (self.x_step * (_TICKS - 1))
        return round(_CHART_LEFT + share * (_CHART_WIDTH - _CHART_LEFT - _CHART_RIGHT), 1)

    def y(self, value: float) -> float:
        share = value / (self.y_step * (_TICKS - 1))
        return round(_CHART_HEIGHT - _CHART_BOTTOM - share * (_CHART_HEIGHT - _CHART_TOP - _CHART_BOTTOM), 1)

    def tick(self, number: int) -> list[str]:
        x, y = self.x(number * self.x_step), self.y(number * self.y_step)
        below = _CHART_HEIGHT - _CHART_BOTTOM
        return [
            f'<path d="M{_CHART_LEFT} {y}H{_CHART_WIDTH - _CHART_RIGHT}M{x} {_CHART_TOP}V{below}" stroke="#ddd"/>',
            f'<text x="{_CHART_LEFT - 8}" y="{y + 4}" text-anchor="end">{number * self.y_step:g}</text>',
            f'<text x="{x}" y="{below + 18}" text-anchor="middle">{number * self.x_step:g}</text>',
        ]


def _drawn(series: Series, scale: _Scale, place: int) -> list[str]:
    way = "L".join(f"{scale.x(point.x)} {scale.y(point.y)}" for point in series.points)
    dash = ' stroke-dasharray="6 4"' if series.dashed else ""
    style = f'stroke="{series.colour}" stroke-width="2"{dash}'
    lines = [f'<path d="M{way}" fill="none" {style}/>']
    for point in series.points:
        if point.low is not None and point.high is not None:
            x = scale.x(point.x)
            lines.append(f'<path d="M{x} {scale.y(point.low)}V{scale.y(point.high)}" {style}/>')
            lines.append(f'<circle cx="{x}" cy="{scale.y(point.y)}" r="4" fill="{series.colour}"/>')
    x, y = _CHART_LEFT + place * 190, _CHART_HEIGHT - 16
    lines.append(f'<path d="M{x} {y - 4}h24" {style}/>')
    lines.append(f'<text x="{x + 30}" y="{y}">{escape(series.name)}</text>')
    return lines


def _step(most: float) -> float:
    """A round distance between ticks, such that the last one is not below the greatest value."""
    raw = most / (_TICKS - 1)
    magnitude = 10 ** ceil(log10(raw)) / 10
    return float(next(magnitude * n for n in (1, 2, 3, 4, 5, 6, 8, 10) if magnitude * n >= raw))
