"""Small pictures as SVG text: they need no library on the page, and take its colours, light or dark."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 180, 26, 40

Place = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """One curve; ``style`` is a class of the page."""

    name: str
    style: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


def line_chart(lines: Sequence[Line], x_name: str, y_name: str) -> str:
    """Draw curves over a common pair of axes, with their names at their ends."""
    largest = max(max(line.x) for line in lines)
    low, high = min(min(line.y) for line in lines), max(max(line.y) for line in lines)
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + x / largest * (WIDTH - LEFT - RIGHT)
        down = TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(down, 1)

    parts = [_grid(ticks, place, largest), *_ticks_below(largest, place)]
    parts += [_curve(line, place) for line in lines]
    parts += _names(lines, place)
    parts.append(f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}">{escape(x_name)}</text>')
    parts.append(f'<text class="axis start" x="4" y="12">{escape(y_name)}</text>')
    label = escape(f"{y_name} over {x_name}: {', '.join(line.name for line in lines)}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from below the lowest value to above the highest."""
    span = max(high - low, 1e-9)
    power = 10.0 ** floor(log10(span / count))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= count)
    return [round(index * step, 6) for index in range(floor(low / step), ceil(high / step) + 1)]


def _grid(ticks: Sequence[float], place: Place, largest: float) -> str:
    parts = []
    for tick in ticks:
        (left, down), (right, _) = place(0, tick), place(largest, tick)
        parts.append(f'<line class="grid" x1="{left}" y1="{down}" x2="{right}" y2="{down}"/>')
        parts.append(f'<text class="axis end" x="{left - 8}" y="{down + 4}">{tick:g}</text>')
    return "".join(parts)


def _ticks_below(largest: float, place: Place) -> list[str]:
    values = [round(largest * share) for share in (0, 0.25, 0.5, 0.75, 1)]
    return [f'<text class="axis" x="{place(value, 0)[0]}" y="{HEIGHT - 22}">{value:,}</text>' for value in values]


def _curve(line: Line, place: Place) -> str:
    points = [place(x, y) for x, y in zip(line.x, line.y, strict=True)]
    path = " ".join(f"{x},{y}" for x, y in points)
    dots = "".join(f'<circle class="{line.style}" cx="{x}" cy="{y}" r="3"/>' for x, y in points) if line.dots else ""
    return f'<polyline class="{line.style}" points="{path}"/>{dots}'


def _names(lines: Sequence[Line], place: Place) -> list[str]:
    """Names at the ends of the curves, moved apart where they would lie on each other."""
    ends = sorted(((place(line.x[-1], line.y[-1])[1], line) for line in lines), key=lambda end: end[0])
    parts, last = [], -100.0
    for down, line in ends:
        last = max(down, last + 16)
        x = WIDTH - RIGHT + 8
        parts.append(f'<text class="name {line.style}" x="{x}" y="{last + 4}">{escape(line.name)}</text>')
    return parts
