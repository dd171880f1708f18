"""Section "vLLM live" of docs/results.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results_page import table
from vllm_exceptions import Limit
from vllm_load import ANSWER_TOKENS, FIGURES, PROMPT_TOKENS, Latency


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one run of a suite; `excepted` were not run, because of what vLLM cannot do."""

    passed: int
    failed: int
    excepted: int

    @property
    def words(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.excepted} excepted"


@dataclass(frozen=True, slots=True)
class Setting:
    """`start_s` is None where the servers were running already."""

    commit: str
    machine: str
    versions: Mapping[str, str]
    is_pair: bool
    start_s: float | None


def section(
    setting: Setting, suites: Mapping[str, Counts], limits: Sequence[Limit], latencies: Sequence[Latency]
) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in setting.versions.items())
    shape = "prefill and decode apart over NIXL" if setting.is_pair else "one server"
    start = "ran already" if setting.start_s is None else f"ready after {setting.start_s:.0f} s"
    parts = [
        "## vLLM live" + (", a pair" if setting.is_pair else ""),
        f"Commit {setting.commit}; {setting.machine}. {versions}; {shape}, {start}.",
        table(["suite", "result"], [[name, counts.words] for name, counts in suites.items()]),
        "What this vLLM does not do, asked of it in this run:",
        "\n".join(f"* {limit.what}: {limit.reason}{_tests(limit)}." for limit in limits),
    ]
    if latencies:
        parts += [
            f"Prompts of {PROMPT_TOKENS} tokens that no cache has seen, answers of {ANSWER_TOKENS}, a closed "
            "loop, vLLM asked directly and through the gateway in turns, in milliseconds:",
            _latency_table(latencies),
        ]
    return "\n\n".join(parts)


def _tests(limit: Limit) -> str:
    return f" (not run: {', '.join(f'`{test}`' for test in limit.tests)})" if limit.tests else ""


def _latency_table(latencies: Sequence[Latency]) -> str:
    header = ["streams", *(f"{name}, {way}" for name in FIGURES for way in ("direct", "gateway"))]
    rows = [
        [str(one.streams), *(f"{way[name]:,.1f}" for name in FIGURES for way in (one.direct, one.gateway))]
        for one in latencies
    ]
    return table(header, rows)
