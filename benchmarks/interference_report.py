"""What benchmarks/interference.py found, in words and tables."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from interference_figures import Figures, over_rounds
from interference_shapes import Shape
from machine import Machine
from results_page import table

WANTED_SLOWDOWN = 1.5
HANDED_OVER = "prefill-decode"


@dataclass(slots=True)
class Found:
    """One shape's runs, one entry a round; `paths` are those of all long prompts."""

    shape: Shape
    rounds: list[Figures] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)

    @property
    def figures(self) -> Figures:
        return over_rounds(self.rounds)


@dataclass(frozen=True, slots=True)
class Setting:
    """Lengths in tokens; a long prompt arrives every `interval_s`."""

    model: str
    dtype: str
    commit: str
    machine: Machine
    num_streams: int
    lengths: tuple[int, ...]
    answer_tokens: int
    interval_s: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Report:
    """`plot` is where the picture lies, as seen from the page; None for none."""

    setting: Setting
    found: list[Found]
    plot: str | None = None

    def as_json(self) -> dict[str, Any]:
        shapes = {
            one.shape.text: {
                **asdict(one.figures),
                "slowdown": one.figures.slowdown,
                "serving_paths": dict(one.paths),
                "rounds": [asdict(figures) for figures in one.rounds],
            }
            for one in self.found
        }
        return {"setting": asdict(self.setting), "shapes": shapes}

    def as_markdown(self) -> str:
        parts = [self._heading(), self._gap_table(), self._prompt_table(), *self._verdicts()]
        if self.plot is not None:
            parts.append(f"![Every gap between two tokens, while long prompts arrive]({self.plot})")
        return "\n\n".join(parts)

    def _heading(self) -> str:
        s = self.setting
        lengths = ", ".join(map(str, s.lengths))
        share = max(one.figures.generator_share for one in self.found)
        machine = f"{s.machine.cpu}, {s.machine.cores} cores, {s.machine.memory_gib} GiB"
        return (
            f"## Interference: {s.model}, {s.dtype}\n\nCommit {s.commit}; {machine}, torch "
            f"{s.machine.torch}. {s.num_streams} streams decode steadily; long prompts ({lengths} tokens, "
            f"answers of {s.answer_tokens}) arrive one every {s.interval_s:.1f} s, the same for all shapes. "
            "All shapes have the same cores, which their workers divide, and with them the gateway and the "
            f"load generator (at most {share:.1%} of a core, kept beside prefill). ITL is a gap between two "
            "tokens of a stream, at the client: *idle* with no long prompt about, *reading* while one waits "
            f"for its first token. Medians of {s.rounds} rounds in one run, the shapes taking turns; maxima "
            "are of all rounds."
        )

    def _gap_table(self) -> str:
        header = [
            "ITL, ms",
            "idle p50",
            "idle p99",
            "reading p50",
            "reading p99",
            "reading max",
            "p99, reading / idle",
        ]
        rows = [
            [
                one.shape.name,
                _ms(f.idle_p50_s),
                _ms(f.idle_p99_s),
                _ms(f.reading_p50_s),
                _ms(f.reading_p99_s),
                _ms(f.reading_max_s),
                f"{f.slowdown:.2f}×",
            ]
            for one in self.found
            for f in [one.figures]
        ]
        return table(header, rows)

    def _prompt_table(self) -> str:
        header = [
            "long prompts and throughput",
            "TTFT alone, s",
            "TTFT beside streams, s",
            "the longest, s",
            "first to second token, ms",
            "streams idle, tokens/s",
            "streams reading, tokens/s",
            "prompts and streams, tokens/s",
        ]
        rows = [
            [
                one.shape.name,
                f"{f.ttft_alone_s:.2f}",
                f"{f.ttft_beside_s:.2f}",
                f"{f.ttft_beside_max_s:.2f}",
                _ms(f.second_token_s),
                f"{f.idle_tokens_s:.1f}",
                f"{f.reading_tokens_s:.1f}",
                f"{f.total_tokens_s:,.0f}",
            ]
            for one in self.found
            for f in [one.figures]
        ]
        return table(header, rows)

    def _verdicts(self) -> list[str]:
        unified = [one for one in self.found if not one.shape.is_apart]
        steadiest = min(unified, key=lambda one: one.figures.reading_p99_s, default=None)
        notes = []
        for one in self.found:
            if not one.shape.is_apart:
                continue
            notes.append(_steadiness(one, steadiest))
            if unified:
                notes.append(_first_tokens(one, unified))
            notes.append(_paths(one))
        return notes


def _steadiness(apart: Found, unified: Found | None) -> str:
    slowdown = apart.figures.slowdown
    is_met = "met" if slowdown <= WANTED_SLOWDOWN else "missed"
    words = (
        f"**Running streams.** With {apart.shape.name}, the p99 while a long prompt is read is "
        f"{slowdown:.2f}× its idle value (wanted: at most {WANTED_SLOWDOWN}×, {is_met})."
    )
    if unified is None:
        return words
    ours, theirs = apart.figures, unified.figures
    return (
        f"{words} The best chunk size for a unified worker, by that p99, is that of {unified.shape.name}: "
        f"{theirs.slowdown:.2f}× its idle value, {_times(theirs.reading_p99_s, ours.reading_p99_s)} "
        f"that of {apart.shape.name} in p99, {_times(theirs.reading_max_s, ours.reading_max_s)} in the "
        "longest gap."
    )


def _first_tokens(apart: Found, unified: list[Found]) -> str:
    parts = [
        _winner(apart, min(unified, key=lambda one: _alone(one)), _alone, "alone on an idle server"),
        _winner(apart, min(unified, key=lambda one: _beside(one)), _beside, "beside the streams"),
    ]
    return f"**First tokens of long prompts.** {' '.join(parts)}"


def _alone(one: Found) -> float:
    return one.figures.ttft_alone_s


def _beside(one: Found) -> float:
    return one.figures.ttft_beside_s


def _winner(apart: Found, unified: Found, seconds: Any, where: str) -> str:
    ours, theirs = seconds(apart), seconds(unified)
    side = "apart" if ours < theirs else "colocation"
    return (
        f"{where.capitalize()}: {ours:.2f} s with {apart.shape.name}, {theirs:.2f} s with the quickest, "
        f"{unified.shape.name}; {side} wins by {_times(max(ours, theirs), min(ours, theirs))}."
    )


def _paths(apart: Found) -> str:
    total, handed = apart.paths.total(), apart.paths[HANDED_OVER]
    words = f"With {apart.shape.name}, {handed} of {total} long prompts went from prefill to decode"
    others = [f"{count} {path}" for path, count in sorted(apart.paths.items()) if path != HANDED_OVER]
    return f"{words}; the others: {', '.join(others)}." if others else f"{words}."


def _times(more: float, less: float) -> str:
    return f"{more / less:.2f}×"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
