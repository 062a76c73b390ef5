"""Line charts with bands as SVG text; colours come from the page's style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 38
MOST_POINTS = 400  # more than a chart of this width can show


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with a band: rounds, means and deviations."""

    name: str
    points: list[tuple[int, float, float]]


def chart(lines: Sequence[Line], title: str) -> str:
    """An SVG line chart; ``title`` is also its text alternative."""
    drawn = [(k, _thin(line.points)) for k, line in enumerate(lines) if line.points]
    every = [point for _, points in drawn for point in points]
    x_axis = _Axis(0, max(x for x, _, _ in every), LEFT, WIDTH - RIGHT)
    low = min(y - d for _, y, d in every)
    high = max(y + d for _, y, d in every)
    y_axis = _Axis(low, high, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_grid(x_axis, y_axis),
        *(_band(points, x_axis, y_axis, k) for k, points in drawn),
        *(_curve(points, x_axis, y_axis, k, lines[k].name) for k, points in drawn),
        f'<text class="tick" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" '
        'text-anchor="middle">round</text>',
        "</svg>",
    ]
    return "\n".join(parts)


class _Axis:
    """Maps values to pixels and chooses round tick values."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        if high <= low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int = 5) -> list[float]:
        """Multiples of 1, 2 or 5 times a power of ten inside the axis."""
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        first = math.ceil(self.low / step)
        return [k * step for k in range(first, math.floor(self.high / step) + 1)]


def _thin(points: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    stride = max(1, math.ceil(len(points) / MOST_POINTS))
    return points[::stride] if points[-1] in points[::stride] else [*points[::stride], points[-1]]


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts = []
    for tick in y_axis.ticks():
        y = y_axis(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>'
        )
    for tick in x_axis.ticks():
        x = x_axis(tick)
        parts.append(
            f'<text class="tick" x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>'
        )
    return parts


def _band(points: list[tuple[int, float, float]], x: _Axis, y: _Axis, k: int) -> str:
    above = [f"{x(r)},{y(m + d)}" for r, m, d in points]
    below = [f"{x(r)},{y(m - d)}" for r, m, d in reversed(points)]
    return f'<polygon class="band c{k % 6}" points="{" ".join(above + below)}"/>'


def _curve(points: list[tuple[int, float, float]], x: _Axis, y: _Axis, k: int, name: str) -> str:
    path = " ".join(f"{x(r)},{y(m)}" for r, m, _ in points)
    return (
        f'<polyline class="curve c{k % 6}" points="{path}"><title>{escape(name)}</title></polyline>'
    )
