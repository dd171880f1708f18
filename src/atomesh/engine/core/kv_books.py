"""Where every KV block is, for those who look in from outside."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atomesh.engine.core.block_pool import BlockPool


@dataclass(frozen=True, slots=True)
class KVBooks:
    """Blocks by state, which sum to `total`; and how many each owner holds, some of them together."""

    total: int
    states: dict[str, int]
    owners: dict[str, int]


def take_stock(pool: "BlockPool", holds: Iterable[tuple[str, list[int]]]) -> KVBooks:
    owned: defaultdict[str, set[int]] = defaultdict(set)
    for owner, blocks in holds:
        owned[owner].update(blocks)
    states = {
        "free": pool.num_free,
        "cached": pool.num_idle,
        "held": pool.num_held,
        "reserved": pool.num_reserved,
        "quarantined": pool.num_quarantined,
    }
    return KVBooks(
        total=pool.num_blocks,
        states=states,
        owners={owner: len(blocks) for owner, blocks in owned.items() if blocks},
    )


class Owner(Protocol):
    @property
    def num_holds(self) -> int:
        """How many blocks it holds; one that it holds twice counts twice."""
        ...


class KVAudit:
    """Whether every block and every hold is somebody's, from counts alone: no block is looked at.

    `unaccounted` are the blocks in no state or in two and the holds that nobody has or nobody has counted, at
    the last time of asking; `imbalances` is how often there were any. Anything but 0 is a fault in here.
    """

    def __init__(self, pool: "BlockPool", owners: Sequence[Owner]) -> None:
        """`owners` are all who hold blocks; with none, holds are not looked into."""
        self.unaccounted = 0
        self.imbalances = 0
        self._pool = pool
        self._owners = owners

    def run(self) -> int:
        """To be called between steps: what is unaccounted for."""
        pool = self._pool
        self.unaccounted = abs(pool.num_blocks - pool.num_counted)
        if self._owners:
            self.unaccounted += abs(pool.num_references - sum(owner.num_holds for owner in self._owners))
        self.imbalances += self.unaccounted > 0
        return self.unaccounted
