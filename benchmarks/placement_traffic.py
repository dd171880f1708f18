"""What is replayed in the benchmarks of placement: a part of a trace, or traffic that is made up."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from atomesh.bench.trace import MOONCAKE_BLOCK_TOKENS, read_trace
from atomesh.planner.simulator.synthetic import BLOCK_TOKENS, SYNTHETIC
from atomesh.planner.simulator.workload import Arrival, Workload, make_workload

TRACE = Path(__file__).parents[2] / "shared" / "traces" / "conversation_trace.jsonl"


@dataclass(frozen=True, slots=True)
class TraceTraffic:
    """The requests of a trace from the share `begin` of it to `end`; with `limit`, of its first so many."""

    path: Path = TRACE
    limit: int | None = None
    begin: float = 0.0
    end: float = 1.0
    block_size: int = MOONCAKE_BLOCK_TOKENS

    def draw(self, seed: int) -> Workload:
        """`seed` is that of the arrivals within a tick."""
        arrivals = _read(self.path, self.limit)
        part = arrivals[int(self.begin * len(arrivals)) : int(self.end * len(arrivals))]
        begun = part[0].at_s if part else 0.0
        moved = [Arrival(one.at_s - begun, one.num_tokens, one.block_ids) for one in part]
        return make_workload(moved, self.block_size, Random(seed))  # noqa: S311


@dataclass(frozen=True, slots=True)
class SyntheticTraffic:
    """One of SYNTHETIC; every seed draws other requests."""

    kind: str
    num_requests: int

    def draw(self, seed: int) -> Workload:
        rng = Random(seed)  # noqa: S311
        return make_workload(SYNTHETIC[self.kind](self.num_requests, rng), BLOCK_TOKENS, rng)


Traffic = TraceTraffic | SyntheticTraffic


@lru_cache(maxsize=1)
def _read(path: Path, limit: int | None) -> tuple[Arrival, ...]:
    entries = read_trace(path, limit)
    return tuple(Arrival(entry.at_s, entry.input_tokens, entry.prefix_ids) for entry in entries)
