"""What the gateway adds before a live vLLM: `atomesh bench` at both, in turns, with prompts new to both."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STREAMS = (1, 8)
PROMPT_TOKENS, ANSWER_TOKENS = 128, 24
FIGURES = {"TTFT p50": "median_ttft_ms", "TTFT p99": "p99_ttft_ms", "ITL p50": "median_itl_ms"}


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds by figure's name; medians over the rounds."""

    streams: int
    direct: Mapping[str, float]
    gateway: Mapping[str, float]


def measure(vllm: str, gateway: str, *, rounds: int, requests: int) -> list[Latency]:
    """`requests` of each stream in each round."""
    return [_measure_at(streams, vllm, gateway, rounds, requests) for streams in STREAMS]


def _measure_at(streams: int, vllm: str, gateway: str, rounds: int, requests: int) -> Latency:
    found: dict[str, list[dict[str, float]]] = {vllm: [], gateway: []}
    for number in range(rounds):
        for place, url in enumerate(found):
            seed = (streams * rounds + number) * len(found) + place
            found[url].append(_bench(url, streams, requests * streams, seed))
    return Latency(streams, _medians(found[vllm]), _medians(found[gateway]))


def _bench(url: str, streams: int, requests: int, seed: int) -> dict[str, float]:
    words = [sys.executable, "-m", "atomesh.cli.main", "bench", "--json", "--url", url]
    words += ["-c", str(streams), "-n", str(requests), "--seed", str(1000 + seed)]
    words += ["--input-len", str(PROMPT_TOKENS), "--output-len", str(ANSWER_TOKENS)]
    answer = subprocess.run(words, stdout=subprocess.PIPE, check=True, env=os.environ)
    report = json.loads(answer.stdout)
    if report.get("errors"):
        raise SystemExit(f"{url}: {report['errors']}")
    return {name: float(report[key]) for name, key in FIGURES.items()}


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in rounds) for name in FIGURES}
