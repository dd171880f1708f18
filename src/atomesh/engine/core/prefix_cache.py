"""Which blocks hold which prefix. Knows neither reference counts nor order: those are the block pool's."""

from collections.abc import Iterable

from atomesh.engine.core.kv_journal import KVJournal
from atomesh.protocol.block_hash import BlockHash


class PrefixCache:
    """A one-to-one map between block hashes and the blocks that hold their KV.

    `journal` says what has come and gone.
    """

    def __init__(self) -> None:
        self._block_by_hash: dict[BlockHash, int] = {}
        self._hash_by_block: dict[int, BlockHash] = {}
        self.journal = KVJournal(self._block_by_hash.keys())

    def __len__(self) -> int:
        return len(self._block_by_hash)

    def __contains__(self, block: int) -> bool:
        return block in self._hash_by_block

    def block_of(self, block_hash: BlockHash) -> int | None:
        return self._block_by_hash.get(block_hash)

    def longest_match(self, block_hashes: Iterable[BlockHash]) -> list[int]:
        """The blocks of the longest cached run from the first hash on."""
        blocks: list[int] = []
        for block_hash in block_hashes:
            block = self._block_by_hash.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def insert(self, block_hash: BlockHash, block: int, before: int | None = None) -> None:
        """`block`, full and computed, holds the prefix that ends with `block_hash`; neither is known yet.

        `before` is the block before it, None for a prompt's first.
        """
        if block_hash in self._block_by_hash or block in self._hash_by_block:
            raise ValueError(f"block {block} or its prefix is already in the cache")
        self._block_by_hash[block_hash] = block
        self._hash_by_block[block] = block_hash
        parent = None if before is None else self._hash_by_block.get(before)
        self.journal.stored(block_hash, parent or b"")

    def forget(self, block: int) -> None:
        block_hash = self._hash_by_block.pop(block)
        del self._block_by_hash[block_hash]
        self.journal.removed(block_hash)

    def check_invariants(self) -> None:
        inverse = {block: block_hash for block_hash, block in self._block_by_hash.items()}
        if inverse != self._hash_by_block:
            raise AssertionError("the prefix cache's two maps disagree")
