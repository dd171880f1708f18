"""The owner of every KV block. A block is in exactly one of five states:

free         nobody holds it and it holds nothing: taken first
idle         nobody holds it, but it holds a prefix: taken when none is free, least recently used first
held         one or more sequences or hand-offs hold it: `references` says how many
reserved     promised to a peer, which may write there at any moment; what is there counts for nothing yet
quarantined  no longer promised, but the peer may still be writing

    free, idle ──take──▶ held ──release──▶ free, idle
    free, idle ──reserve──▶ reserved ──fill──▶ held
                               └──quarantine──▶ quarantined ──lift──▶ free
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from atomesh.engine.core.prefix_cache import PrefixCache


class BlockPool:
    def __init__(self, num_blocks: int, cache: PrefixCache) -> None:
        self.num_blocks = num_blocks
        self._cache = cache
        self._references = [0] * num_blocks
        self._num_references = 0
        self._num_held = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._reserved: set[int] = set()
        self._quarantined: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_available(self) -> int:
        """Blocks that `take` can give."""
        return len(self._free) + len(self._idle)

    @property
    def num_reserved(self) -> int:
        return len(self._reserved)

    @property
    def num_quarantined(self) -> int:
        return len(self._quarantined)

    @property
    def num_held(self) -> int:
        return self._num_held

    @property
    def num_references(self) -> int:
        """Holders of all blocks together."""
        return self._num_references

    @property
    def num_counted(self) -> int:
        """Blocks of all states together, each counted for itself: all there are, if no fault is in here."""
        return self.num_available + self._num_held + len(self._reserved) + len(self._quarantined)

    def references(self, block: int) -> int:
        return self._references[block]

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def take(self) -> int:
        """A blank block, held once; the least recently used prefix is forgotten for it if need be.

        Raises IndexError when no block is available.
        """
        block = self._pick()
        self._hold_first(block)
        return block

    def reserve(self) -> int:
        """A block that a peer may write to from now on; as `take` otherwise."""
        block = self._pick()
        self._reserved.add(block)
        return block

    def fill(self, block: int) -> None:
        """What the peer brought to a reserved block is complete: it is held once, and not written again."""
        self._reserved.remove(block)
        self._hold_first(block)

    def quarantine(self, blocks: Iterable[int]) -> None:
        """The reserved `blocks` are no longer wanted, but cannot be used before `lift`."""
        for block in blocks:
            self._reserved.remove(block)
            self._quarantined.add(block)

    def lift(self, blocks: Iterable[int]) -> None:
        """Nobody writes to the quarantined `blocks` any more."""
        for block in blocks:
            self._quarantined.remove(block)
            self._free.append(block)

    def hold(self, block: int) -> None:
        """One more holder for a block that is idle or held."""
        if self._references[block] == 0:
            del self._idle[block]
            self._hold_first(block)
        else:
            self._references[block] += 1
            self._num_references += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each block of a chain, tail first, so that tails are forgotten before heads."""
        for block in reversed(blocks):
            if self._references[block] <= 0:
                raise ValueError(f"block {block} is released, but nobody holds it")
            self._references[block] -= 1
            self._num_references -= 1
            if self._references[block] == 0:
                self._set_down(block)

    def forget_idle(self) -> None:
        """All idle blocks become free, and their prefixes are gone."""
        for block in self._idle:
            self._cache.forget(block)
            self._free.append(block)
        self._idle.clear()

    def _pick(self) -> int:
        if self._free:
            return self._free.pop()
        if not self._idle:
            raise IndexError(f"none of {self.num_blocks} KV blocks is free or idle")
        block, _ = self._idle.popitem(last=False)
        self._cache.forget(block)
        return block

    def _hold_first(self, block: int) -> None:
        self._references[block] = 1
        self._num_references += 1
        self._num_held += 1

    def _set_down(self, block: int) -> None:
        self._num_held -= 1
        if block in self._cache:
            self._idle[block] = None
        else:
            self._free.append(block)

    def check_invariants(self) -> None:
        held = {block for block, count in enumerate(self._references) if count}
        states = [set(self._free), set(self._idle), held, self._reserved, self._quarantined]
        if len(states[0]) != len(self._free) or sum(map(len, states)) != self.num_blocks:
            names = ("free", "idle", "held", "reserved", "quarantined")
            counted = " + ".join(f"{len(state)} {name}" for state, name in zip(states, names, strict=True))
            raise AssertionError(f"{counted} blocks are not {self.num_blocks}")
        if (self._num_held, self._num_references) != (len(held), sum(self._references)):
            raise AssertionError(
                f"{self._num_held} blocks are counted as held, {self._num_references} times in all; "
                f"{len(held)} are, {sum(self._references)} times"
            )
        if set().union(*states) != set(range(self.num_blocks)):
            raise AssertionError("a block is in two states, or in none")
        blank = states[0] | self._reserved | self._quarantined
        if not all(block in self._cache for block in self._idle) or any(b in self._cache for b in blank):
            raise AssertionError("an idle block without a prefix, or a blank one with it")
        self._cache.check_invariants()
