"""What benchmarks/gateway.py found, and how it is shown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from gateway_text import TextCost
from results_page import table

from atomesh.bench.statistics import percentile

DIRECT = "direct"
ROUTERS = ("sglang-router", "vllm-router")
OURS = "ATOMesh"


@dataclass(slots=True)
class LevelFound:
    """With so many streams at once; one entry a round in `cpu_s`, which is a stream's; seconds."""

    cpu_s: list[float] = field(default_factory=list)
    ttfts: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)

    def ttft(self, percent: float) -> float:
        return percentile(sorted(self.ttfts), percent)


@dataclass(slots=True)
class GatewayFound:
    """`single_s` and `whole_s` are the CPU of a request that is not streamed, for one token and for all, one
    entry a round. `failed` are examples."""

    name: str
    single_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    levels: dict[int, LevelFound] = field(default_factory=dict)
    memory_bytes: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Setting:
    """`versions` are the others'. `step_s` is between two chunks of a stream."""

    commit: str
    machine: str
    model: str
    rounds: int
    is_pinned: bool
    tokens: int
    step_s: float
    router_policy: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    setting: Setting
    found: list[GatewayFound]
    text: TextCost

    @property
    def levels(self) -> list[int]:
        return list(self.found[0].levels)

    def added_ttft(self, one: GatewayFound, level: int, percent: float) -> float:
        """Seconds, to what the same load sees without a gateway."""
        direct = next(other for other in self.found if other.name == DIRECT)
        return one.levels[level].ttft(percent) - direct.levels[level].ttft(percent)

    def as_json(self) -> dict[str, Any]:
        added = {
            one.name: {
                str(level): {f"p{percent}": self.added_ttft(one, level, percent) for percent in (50, 99)}
                for level in self.levels
            }
            for one in self.found
        }
        return {**asdict(self), "added_ttft_s": added}

    def as_markdown(self) -> str:
        parts = [
            "## The gateway: CPU, and what it adds to the TTFT",
            self._preface(),
            self._cpu_table(),
            self._ttft_table(),
            self._text_words(),
            *self._verdicts(),
        ]
        return "\n\n".join(parts)

    def _preface(self) -> str:
        setting = self.setting
        others = ", ".join(f"{name} {version}" for name, version in setting.versions.items())
        place = "every process may use every core"
        if setting.is_pinned:
            place = "each gateway on the same one core, the engine and the load on the other"
        return (
            f"Commit {setting.commit}; {setting.machine}. Every gateway before the same mock engine, which "
            f"sends the first token at once and each further one {setting.step_s * 1e3:g} ms later, "
            f"{setting.tokens} in all, to all its streams in the same step. Chats of "
            f"{self.text.prompt_tokens} tokens, HTTP/1.1 connections kept open; {place}. CPU is the kernel's "
            "count for the gateway's processes over the load, divided by the requests: medians of "
            f"{setting.rounds} rounds, the "
            "gateways taking turns. The TTFT is the client's, of all rounds together, less that of the same "
            f"load sent directly. Others: {others or 'none'}; the routers with `{setting.router_policy}`. "
            "What is not streamed comes at once, but token by token to our `vllm` and `atom`. "
            f"{OURS} before `openai` passes text on as the others do; before `vllm` and its own worker "
            f"(`atom`) it renders, tokenises and detokenises ({setting.model}), places by KV and could go on "
            "with a stream elsewhere."
        )

    def _cpu_table(self) -> str:
        header = ["CPU", "a request of 1 token, µs", f"of {self.setting.tokens}, not streamed, ms"]
        for level in self.levels:
            header += [f"a stream, {level} at once, ms", f"a token, {level} at once, µs"]
        header.append("memory, MiB")
        return table(header, [self._cpu_row(one) for one in self.found if one.name != DIRECT])

    def _cpu_row(self, one: GatewayFound) -> list[str]:
        row = [one.name, f"{median(one.single_s) * 1e6:.0f}", f"{median(one.whole_s) * 1e3:.2f}"]
        for level in one.levels.values():
            stream_s = median(level.cpu_s)
            row += [f"{stream_s * 1e3:.2f}", f"{stream_s / self.setting.tokens * 1e6:.1f}"]
        return [*row, f"{one.memory_bytes / 2**20:.0f}"]

    def _ttft_table(self) -> str:
        header = ["added to the TTFT, ms"]
        header += [f"{part}, {level} at once" for level in self.levels for part in ("p50", "p99")]
        header.append(f"a stream's duration, {self.levels[-1]} at once, ms")
        return table(header, [self._ttft_row(one) for one in self.found])

    def _ttft_row(self, one: GatewayFound) -> list[str]:
        row = [one.name if one.name != DIRECT else f"{DIRECT} (all of it)"]
        for level, found in one.levels.items():
            for percent in (50, 99):
                shown = found.ttft(percent) if one.name == DIRECT else self.added_ttft(one, level, percent)
                row.append(f"{shown * 1e3:.2f}")
        return [*row, f"{median(one.levels[self.levels[-1]].durations) * 1e3:.0f}"]

    def _text_words(self) -> str:
        text = self.text
        return (
            f"The text side alone, by the same functions on the same prompts: rendering "
            f"{text.render_s * 1e6:.0f} µs and tokenising {text.tokenise_s * 1e6:.0f} µs a request, "
            f"detokenising {text.detokenise_s * 1e6:.1f} µs a token. It is part of the figures of "
            f"`{OURS}, vllm` and `{OURS}, atom`, and of no other's."
        )

    def _verdicts(self) -> list[str]:
        """Each of ours beside the cheaper router, with and without its text side."""
        routers = [one for one in self.found if one.name in ROUTERS]
        ours = [one for one in self.found if one.name.startswith(OURS)]
        if not routers:
            return []
        return [self._verdict(one, routers) for one in ours]

    def _verdict(self, one: GatewayFound, routers: Sequence[GatewayFound]) -> str:
        has_text = not one.name.endswith("openai")
        text_s = (self.text.render_s + self.text.tokenise_s) if has_text else 0.0
        single = _beside(median(one.single_s), min(median(other.single_s) for other in routers), text_s)
        words = [f"a request of 1 token {single}"]
        answer_s = text_s + (self.text.detokenise_s * self.setting.tokens if has_text else 0.0)
        for level in self.levels:
            cheapest = min(median(other.levels[level].cpu_s) for other in routers)
            words.append(
                f"a stream, {level} at once, {_beside(median(one.levels[level].cpu_s), cheapest, answer_s)}"
            )
        suffix = " (in brackets without the text side)" if has_text else ""
        return f"{one.name}, CPU beside the cheaper router's{suffix}: {'; '.join(words)}."


def _beside(ours: float, theirs: float, text_s: float) -> str:
    shown = f"{ours / theirs:.2f}×"
    return f"{shown} ({(ours - text_s) / theirs:.2f}×)" if text_s else shown
