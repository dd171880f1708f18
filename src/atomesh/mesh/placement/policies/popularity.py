"""How often a prefix has been asked for of late."""

from collections import OrderedDict
from math import exp

from atomesh.protocol.block_hash import BlockHash

MEMORY_S = 10.0  # after which an older use counts a third
MAX_PREFIXES = 8192


class Popularity:
    """Of the prefixes used last, MAX_PREFIXES at most."""

    def __init__(self) -> None:
        self._uses: OrderedDict[BlockHash, tuple[float, float]] = OrderedDict()

    def use(self, prefix: BlockHash, now: float) -> float:
        """One more request with this prefix; the uses before it, each counting less the older it is."""
        uses, used_at = self._uses.pop(prefix, (0.0, now))
        uses *= exp(min(used_at - now, 0.0) / MEMORY_S)
        self._uses[prefix] = uses + 1.0, now
        if len(self._uses) > MAX_PREFIXES:
            self._uses.popitem(last=False)
        return uses
