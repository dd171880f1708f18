"""What the mock engines of benchmarks/routing.py simulate: a prefix cache, and prefill one by one. Pure."""

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

B = TypeVar("B", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Change(Generic[B]):
    """`parent` is the block before the first of those stored, None where that begins the prompt."""

    stored: list[B]
    removed: list[B]
    parent: B | None = None


class PrefixCache(Generic[B]):
    """The least recently used block goes first, and of a prompt its last block before those ahead of it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[B, None] = OrderedDict()

    def match(self, chain: Sequence[B]) -> int:
        """How many blocks from the first on are held."""
        return next((place for place, block in enumerate(chain) if block not in self._blocks), len(chain))

    def admit(self, chain: Sequence[B]) -> Change[B]:
        """All of the chain are held now, as far as there is room for it from its start on."""
        kept = chain[: self._capacity]
        matched = self.match(kept)
        stored = [block for block in kept[matched:] if block not in self._blocks]
        for block in reversed(kept):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        removed = []
        while len(self._blocks) > self._capacity:
            removed.append(self._blocks.popitem(last=False)[0])
        place = chain.index(stored[0]) if stored else 0
        return Change(stored, removed, chain[place - 1] if place else None)

    def clear(self) -> None:
        self._blocks.clear()

    def __len__(self) -> int:
        return len(self._blocks)


@dataclass(slots=True)
class EngineFigures:
    """Of one engine; `ttfts` are seconds from a request's arrival to the end of its prefill.

    `late_s` sums by how much prefills ended later than they should have, for want of a core.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    busy_s: float = 0.0
    late_s: float = 0.0
    ttfts: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Job(Generic[B]):
    arrived_at: float
    num_tokens: int
    chain: Sequence[B]


class SimulatedEngine(Generic[B]):
    """Prefills one prompt at a time, in the order of arrival, at `token_s` a token that is not cached.

    The caller keeps the time: `begin` when it is idle and something waits, `finish` when that is over.
    """

    def __init__(self, capacity: int, block_size: int, token_s: float) -> None:
        self.cache: PrefixCache[B] = PrefixCache(capacity)
        self.figures = EngineFigures()
        self.cached_tokens = 0  # of the prompt that is worked on
        self._block_size, self._token_s = block_size, token_s
        self._waiting: deque[Job[B]] = deque()
        self._current: Job[B] | None = None

    @property
    def num_running(self) -> int:
        return int(self._current is not None)

    @property
    def num_used_blocks(self) -> int:
        """Of the prompt that is worked on; what is only cached is free to take."""
        return 0 if self._current is None else len(self._current.chain)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def arrive(self, job: Job[B]) -> None:
        self._waiting.append(job)

    def begin(self) -> float | None:
        """The seconds that the next prompt takes; None when one is being worked on, or none waits.

        As a real engine does, it computes the last token even of a prompt that is cached whole.
        """
        if self._current is not None or not self._waiting:
            return None
        job = self._current = self._waiting.popleft()
        cached = min(self.cache.match(job.chain) * self._block_size, job.num_tokens - 1)
        self.cached_tokens = cached
        seconds = (job.num_tokens - cached) * self._token_s
        figures = self.figures
        figures.prompt_tokens += job.num_tokens
        figures.cached_tokens += cached
        figures.busy_s += seconds
        return seconds

    def finish(self, now: float) -> Change[B]:
        """The prompt that was worked on is in the cache."""
        assert self._current is not None
        job, self._current = self._current, None
        self.figures.ttfts.append(now - job.arrived_at)
        return self.cache.admit(job.chain)


def shared_hit_rate(prompts: Sequence[tuple[int, Sequence[B]]], capacity: int, block_size: int) -> float:
    """The share of tokens that one cache of `capacity` blocks before all engines finds.

    `prompts` are lengths and chains, in the order of arrival.
    """
    cache: PrefixCache[B] = PrefixCache(capacity)
    found = 0
    for num_tokens, chain in prompts:
        found += min(cache.match(chain) * block_size, num_tokens - 1)
        cache.admit(chain)
    return found / sum(num_tokens for num_tokens, _ in prompts)
