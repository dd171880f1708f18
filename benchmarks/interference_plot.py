"""Every gap between two tokens over time, one panel a shape, as an SVG that needs no library.

A gap is a stroke at the height of its length, from its first token to its second: a stall is seen for as long
as it lasted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, LEFT, RIGHT = 900, 64, 12
SHORTEST = -3  # as a power of ten, in seconds; two tokens that came together are no gap to look at
PANEL, TOP, GUTTER = 130, 26, 22
INK, FAINT, DOT, BAND = "#1f2933", "#cbd2d9", "#2563eb", "#fde9c8"


@dataclass(frozen=True, slots=True)
class Panel:
    """Seconds since the panel's start; `gaps` are (start, length), `waits` when a long prompt was read."""

    title: str
    gaps: Sequence[tuple[float, float]]
    waits: Sequence[tuple[float, float]]
    duration_s: float


@dataclass(frozen=True, slots=True)
class _Scales:
    """Both axes in pixels; lengths on a logarithmic one of whole decades."""

    duration_s: float
    low: int
    high: int

    def x(self, seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(seconds / self.duration_s, 0.0), 1.0)

    def y(self, seconds: float) -> float:
        share = (log10(seconds) - self.low) / (self.high - self.low)
        return PANEL * (1.0 - min(max(share, 0.0), 1.0))


def interference_svg(panels: Sequence[Panel]) -> str:
    """All panels have the same axes, so that they can be compared."""
    lengths = [length for panel in panels for _, length in panel.gaps if length > 0]
    low = max(floor(log10(min(lengths))), SHORTEST)
    high = max(ceil(log10(max(lengths))), low + 1)
    scales = _Scales(max(panel.duration_s for panel in panels), low, high)
    height = len(panels) * (TOP + PANEL) + GUTTER + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="11" fill="{INK}">',
        "<title>Gaps between tokens of running streams while long prompts are read</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *(_panel(panel, scales, index * (TOP + PANEL)) for index, panel in enumerate(panels)),
        _time_axis(scales, len(panels) * (TOP + PANEL)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(panel: Panel, scales: _Scales, top: int) -> str:
    bands = [
        f'<rect x="{scales.x(start):.1f}" width="{scales.x(end) - scales.x(start):.1f}" '
        f'height="{PANEL}" fill="{BAND}"/>'
        for start, end in panel.waits
    ]
    lines = [
        f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{FAINT}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_duration(power)}</text>'
        for power in range(scales.low, scales.high + 1)
        for y in [scales.y(10.0**power)]
    ]
    return "\n".join(
        [
            f'<g transform="translate(0 {top + TOP})">',
            f'<text x="{LEFT}" y="-8" font-weight="bold">{escape(panel.title)}</text>',
            *bands,
            *lines,
            f'<path d="{_strokes(panel, scales)}" stroke="{DOT}" stroke-width="2.4" stroke-linecap="round"/>',
            "</g>",
        ]
    )


def _strokes(panel: Panel, scales: _Scales) -> str:
    """Whole pixels, so that gaps that look the same are drawn once; round caps show those of no width."""
    places = set()
    for start, length in panel.gaps:
        if length > 0:
            x, y = round(scales.x(start)), round(scales.y(length))
            places.add((x, y, round(scales.x(start + length)) - x))
    return "".join(f"M{x} {y}h{width}" for x, y, width in sorted(places))


def _time_axis(scales: _Scales, top: int) -> str:
    step = _round_step(scales.duration_s)
    ticks = [index * step for index in range(int(scales.duration_s / step) + 1)]
    labels = [
        f'<text x="{scales.x(tick):.1f}" y="{top + 16}" text-anchor="middle">{tick:g} s</text>'
        for tick in ticks
    ]
    return "\n".join(labels)


def _round_step(duration_s: float) -> float:
    """1, 2 or 5 times a power of ten, for five to ten ticks."""
    power = 10.0 ** floor(log10(duration_s / 5))
    return next(factor * power for factor in (5, 2, 1) if factor * power <= duration_s / 5)


def _duration(power: int) -> str:
    return f"{10**power:g} s" if power >= 0 else f"{10.0 ** (power + 3):g} ms"
