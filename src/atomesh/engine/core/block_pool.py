"""The owner of every KV block. A block is in exactly one of three states:

free   nobody holds it and it holds nothing: taken first
idle   nobody holds it, but it holds a prefix: taken when no free block is left, least recently used first
held   one or more sequences hold it: `references` says how many
"""

from collections import OrderedDict
from collections.abc import Sequence

from atomesh.engine.core.prefix_cache import PrefixCache


class BlockPool:
    def __init__(self, num_blocks: int, cache: PrefixCache) -> None:
        self.num_blocks = num_blocks
        self._cache = cache
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()

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

    def references(self, block: int) -> int:
        return self._references[block]

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def take(self) -> int:
        """A blank block, held once; the least recently used prefix is forgotten for it if need be.

        Raises IndexError when all blocks are held.
        """
        if self._free:
            block = self._free.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            self._cache.forget(block)
        else:
            raise IndexError(f"all {self.num_blocks} KV blocks are held")
        self._references[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One more holder for a block that is idle or held."""
        if self._references[block] == 0:
            del self._idle[block]
        self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each block of a chain, tail first, so that tails are forgotten before heads."""
        for block in reversed(blocks):
            if self._references[block] <= 0:
                raise ValueError(f"block {block} is released, but nobody holds it")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._set_down(block)

    def forget_idle(self) -> None:
        """All idle blocks become free, and their prefixes are gone."""
        for block in self._idle:
            self._cache.forget(block)
            self._free.append(block)
        self._idle.clear()

    def _set_down(self, block: int) -> None:
        if block in self._cache:
            self._idle[block] = None
        else:
            self._free.append(block)

    def check_invariants(self) -> None:
        free, idle = set(self._free), set(self._idle)
        held = {block for block, count in enumerate(self._references) if count}
        if len(free) != len(self._free) or len(free) + len(idle) + len(held) != self.num_blocks:
            raise AssertionError(f"{len(free)} free + {len(idle)} idle + {len(held)} held blocks")
        if free | idle | held != set(range(self.num_blocks)):
            raise AssertionError("a block is in two states, or in none")
        if not all(block in self._cache for block in idle) or any(block in self._cache for block in free):
            raise AssertionError("an idle block without a prefix, or a free one with it")
        self._cache.check_invariants()
