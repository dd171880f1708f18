"""Where every KV block is, for those who look in from outside."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
