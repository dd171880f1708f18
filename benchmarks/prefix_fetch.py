"""A prompt's first token when its beginning lies at a busy worker and another is idle: fetched, or computed.

Servers of two unified workers take turns: over shared memory, over TCP, and without fetches. In each round a
document is read by one worker, which is then kept busy by a long question about it; the short question that
comes meanwhile is timed. `python benchmarks/prefix_fetch.py --help`
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from interference_shapes import Shape, serving
from machine import describe_machine
from results_page import table, write_section
from revision import commit

from atomesh.cli import environment
from atomesh.model_files.catalog import DEFAULT_MODEL
from atomesh.model_files.resolve import resolve_model
from atomesh.testing.completion_client import Client
from atomesh.testing.tiny_model import write_tiny_model

OWNER = "benchmarks/prefix_fetch.py"
UNFETCHED = "not fetched (--no-prefix-fetch)"
CONTESTANTS: Mapping[str, tuple[str, ...]] = {
    "fetched, shared memory": ("--kv-transport=shm",),
    "fetched, TCP": ("--kv-transport=tcp",),
    UNFETCHED: ("--no-prefix-fetch",),
}
WANTED = 0.5  # of the time without fetches
BUSY_PATIENCE_S = 10.0
CHUNK = 256
TINY = "tiny"
TINY_SIZES: Mapping[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "max_position_embeddings": 8192,
}
KV_MEMORY = "1GiB"


@dataclass(frozen=True, slots=True)
class Timed:
    """Of one short question. `fetch_s` and `predicted_s` are None where nothing was fetched."""

    ttft_s: float
    cached_tokens: int
    fetch_s: float | None
    predicted_s: float | None


@dataclass(frozen=True, slots=True)
class Lengths:
    """In tokens."""

    document: int
    long_question: int
    short_question: int


class Contestant:
    def __init__(self, client: Client, lengths: Lengths) -> None:
        self._client = client
        self._lengths = lengths
        self._pool = ThreadPoolExecutor(1)
        self.timed: list[Timed] = []

    def play(self, rng: random.Random) -> None:
        """One round, with a document that nobody has read before."""
        lengths = self._lengths
        document = _tokens(rng, lengths.document)
        self._client.complete(document, max_tokens=1)
        long = self._pool.submit(
            self._client.complete, document + _tokens(rng, lengths.long_question), max_tokens=1
        )
        self._wait_until_busy()
        self.timed.append(self._ask(document + _tokens(rng, lengths.short_question)))
        long.result()

    def close(self) -> None:
        self._pool.shutdown()

    def _ask(self, prompt: list[int]) -> Timed:
        began = time.monotonic()
        stream = self._client.stream(prompt, max_tokens=2, ignore_eos=True, headers={"x-explain": "1"})
        frames: list[dict[str, Any]] = []
        ttft_s = 0.0
        while (frame := stream.next_frame()) is not None:
            ttft_s = ttft_s or time.monotonic() - began
            frames.append(frame)
        answer = stream.finish()
        [request] = next(frame["explain"] for frame in reversed(frames) if "explain" in frame)["requests"]
        predicted = request["attempts"][-1]["predicted"]["fetch_s"]
        return Timed(ttft_s, answer.cached_tokens or 0, request["measured"]["fetch_s"], predicted)

    def _wait_until_busy(self) -> None:
        """Until the long question is at a worker. Raises RuntimeError when it does not get there."""
        ends_at = time.monotonic() + BUSY_PATIENCE_S
        while time.monotonic() < ends_at:
            lines = self._client.get("/metrics").splitlines()
            running = [line for line in lines if line.startswith("vllm:num_requests_running{")]
            if any(float(line.rpartition(" ")[2]) > 0 for line in running):
                return
            time.sleep(0.01)
        raise RuntimeError("the long question has not begun")


def main() -> int:
    options = _parse()
    lengths = Lengths(options.document, options.long_question, options.short_question)
    with contestants(options, lengths) as playing:
        for number in range(options.rounds + 1):
            for name, contestant in playing.items():
                contestant.play(random.Random(f"{options.seed} {number}"))  # noqa: S311
                last = contestant.timed[-1]
                print(f"{number}: {name}: {last.ttft_s:.3f} s, {last.cached_tokens} cached", file=sys.stderr)
                if number == 0:
                    contestant.timed.clear()  # the costs were not known yet
        found = {name: contestant.timed for name, contestant in playing.items()}
    text = report(options, found)
    print(text)
    if options.write is not None:
        write_section(options.write, OWNER, text)
    return 0 if is_met(found) else 1


@contextmanager
def contestants(options: argparse.Namespace, lengths: Lengths) -> Iterator[dict[str, Contestant]]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = str(_model(options.model, home))
        made: dict[str, Contestant] = {}
        for number, (name, flags) in enumerate(CONTESTANTS.items()):
            shape = Shape(name, name, ("--unified=2", *flags), is_apart=False)
            given = ["--dtype=float32", f"--kv-memory={KV_MEMORY}", f"--max-num-batched-tokens={CHUNK}"]
            server = stack.enter_context(serving(shape, model, home / str(number), given))
            made[name] = Contestant(Client(urlsplit(server.url).port or 0, server.model), lengths)
            stack.callback(made[name].close)
        yield made


def report(options: argparse.Namespace, found: Mapping[str, list[Timed]]) -> str:
    base = median(one.ttft_s for one in found[UNFETCHED])
    rows = [_row(name, timed, base) for name, timed in found.items()]
    header = ["the document is", "TTFT, s", "least", "most", "of not fetched", "cached tokens"]
    header += ["waited for it, ms", "predicted, ms"]
    verdict = "met" if is_met(found) else "MISSED"
    long = options.document + options.long_question
    return f"""## A prefix from a busy worker: {_name(options.model)}

Commit {commit()}; {describe_machine()}. \
Two unified workers. One computes a prompt of {long:,} tokens, a document and a question about it; the other \
is idle. {options.short_question} tokens are asked about the same document, of {options.document:,} tokens, \
which only the busy one has read: without fetches they wait for it there, or it is read again by the idle \
one. Medians of {options.rounds} rounds in one run, the servers taking turns, the same prompts for all; \
float32.

{table(header, rows)}

Wanted: a fetched document's first token in at most {WANTED:.0%} of the time without fetches: {verdict}."""


def is_met(found: Mapping[str, list[Timed]]) -> bool:
    """Every contestant that may fetch is that much quicker, in the median."""
    limit = WANTED * median(one.ttft_s for one in found[UNFETCHED])
    return all(
        median(one.ttft_s for one in timed) <= limit for name, timed in found.items() if name != UNFETCHED
    )


def _row(name: str, timed: list[Timed], base: float) -> list[str]:
    times = [one.ttft_s for one in timed]
    waited = [one.fetch_s for one in timed if one.fetch_s is not None]
    predicted = [one.predicted_s for one in timed if one.predicted_s is not None]
    return [
        name,
        f"{median(times):.3f}",
        f"{min(times):.3f}",
        f"{max(times):.3f}",
        f"{median(times) / base:.0%}",
        f"{median(one.cached_tokens for one in timed):,.0f}",
        f"{median(waited) * 1000:.0f}" if waited else "–",
        f"{median(predicted) * 1000:.0f}" if predicted else "–",
    ]


def _model(wanted: str, home: Path) -> Path:
    if wanted == TINY:
        return write_tiny_model(home / TINY, **TINY_SIZES)
    return resolve_model(wanted, environment.home()).path


def _name(wanted: str) -> str:
    sizes = f", {TINY_SIZES['num_hidden_layers']} layers of {TINY_SIZES['hidden_size']}, random weights"
    return Path(wanted).stem + (sizes if wanted == TINY else "")


def _tokens(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, 380) for _ in range(length)]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time the first token of a prompt whose prefix lies at a busy worker."
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"what to serve; {TINY} is made up")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds")
    parser.add_argument("--document", type=int, default=1536, help="tokens of the shared beginning")
    parser.add_argument("--long-question", type=int, default=2048, help="tokens that keep its reader busy")
    parser.add_argument("--short-question", type=int, default=32, help="tokens of the one that is timed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace its section of this page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
