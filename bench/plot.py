"""A small line chart as SVG, without a library: for the few pictures of docs/benchmarks.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, log10

_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 20, 84
_TICKS = 6


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
class Chart:
    """Both axes begin at zero."""

    x_label: str
    y_label: str
    series: Sequence[Series]

    def svg(self) -> str:
        """The picture as text."""
        points = [point for one in self.series for point in one.points]
        x_step = _step(max(point.x for point in points))
        y_step = _step(max(max(point.y, point.high or 0.0) for point in points))
        scale = _Scale(x_step, y_step)
        size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            *(line for number in range(_TICKS) for line in scale.tick(number)),
            *self._labels(),
            *(line for place, one in enumerate(self.series) for line in _drawn(one, scale, place)),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _labels(self) -> list[str]:
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        centre = (_TOP + _HEIGHT - _BOTTOM) / 2
        places = {
            self.x_label: f'x="{middle}" y="{_HEIGHT - _BOTTOM + 40}"',
            self.y_label: f'transform="translate(16 {centre}) rotate(-90)"',
        }
        return [f'<text {at} text-anchor="middle">{escape(text)}</text>' for text, at in places.items()]


@dataclass(frozen=True)
class _Scale:
    x_step: float
    y_step: float

    def x(self, value: float) -> float:
        share = value / (self.x_step * (_TICKS - 1))
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = value / (self.y_step * (_TICKS - 1))
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)

    def tick(self, number: int) -> list[str]:
        x, y = self.x(number * self.x_step), self.y(number * self.y_step)
        below = _HEIGHT - _BOTTOM
        return [
            f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}M{x} {_TOP}V{below}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{number * self.y_step:g}</text>',
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
    x, y = _LEFT + place * 190, _HEIGHT - 16
    lines.append(f'<path d="M{x} {y - 4}h24" {style}/>')
    lines.append(f'<text x="{x + 30}" y="{y}">{escape(series.name)}</text>')
    return lines


def _step(most: float) -> float:
    """A round distance between ticks, such that the last one is not below the greatest value."""
    raw = most / (_TICKS - 1)
    magnitude = 10 ** ceil(log10(raw)) / 10
    return float(next(magnitude * n for n in (1, 2, 3, 4, 5, 6, 8, 10) if magnitude * n >= raw))
