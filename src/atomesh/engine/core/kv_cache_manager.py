"""Gives sequences their blocks: finds cached prefixes, grows block tables, shares blocks between branches.

A sequence gets the blocks of all its known tokens when it is admitted, or none at all, so that no two
half-computed prompts ever wait for each other. A sequence's full computed blocks are always the registered
ones: whoever computes a prefix that another has registered meanwhile switches to that block. So a registered
block's parent is registered too.
"""

from collections import Counter
from typing import TYPE_CHECKING

from atomesh.engine.core.batch import BlockCopy
from atomesh.engine.core.block_pool import BlockPool
from atomesh.engine.core.prefix_cache import PrefixCache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atomesh.engine.core.request import TokenSequence
    from atomesh.protocol.block_hash import BlockHasher


class KVCacheManager:
    def __init__(self, num_blocks: int, hasher: "BlockHasher", *, enable_prefix_cache: bool) -> None:
        self.block_size = hasher.block_size
        self._hasher = hasher
        self._is_caching = enable_prefix_cache
        self._cache = PrefixCache()
        self._pool = BlockPool(num_blocks, self._cache)
        self._copy_sources: list[int] = []  # held until the step that copies them is over

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def num_idle_blocks(self) -> int:
        return self._pool.num_idle

    def match(self, sequence: "TokenSequence") -> list[int]:
        """Cached blocks of the longest known prefix that leaves a token to compute. Takes nothing."""
        if not self._is_caching or sequence.wants_prompt_logprobs:
            return []
        num_blocks = (sequence.num_tokens - 1) // self.block_size
        self._hash_blocks(sequence, num_blocks)
        return self._cache.longest_match(sequence.block_hashes[:num_blocks])

    def admit(self, sequence: "TokenSequence", matched: list[int], reserve: int) -> bool:
        """Blocks for all known tokens, the `matched` shared; False if less than `reserve` would be left."""
        missing = -(-sequence.num_tokens // self.block_size) - len(matched)
        revived = sum(map(self._pool.is_idle, matched))
        if missing + revived + reserve > self._pool.num_available:
            return False
        for block in matched:
            self._pool.hold(block)
        sequence.block_table = matched + [self._pool.take() for _ in range(missing)]
        sequence.num_computed_tokens = len(matched) * self.block_size
        sequence.num_registered_blocks = len(matched)
        return True

    def grow(self, sequence: "TokenSequence", copies: list[BlockCopy]) -> bool:
        """Room of its own for the sequence's last token; False if no block is left. May add to `copies`."""
        table = sequence.block_table
        index = (sequence.num_tokens - 1) // self.block_size
        is_missing = index == len(table)
        if not is_missing and not self._is_shared(table[index]):
            return True
        if self._pool.num_available == 0:
            return False
        block = self._pool.take()
        if is_missing:
            table.append(block)
        else:
            copies.append(BlockCopy(source=table[index], target=block))
            self._copy_sources.append(table[index])
            table[index] = block
        return True

    def register(self, sequence: "TokenSequence") -> None:
        """The sequence's full computed blocks can be found by others from now on."""
        num_full = sequence.num_computed_tokens // self.block_size
        if not self._is_caching or num_full == sequence.num_registered_blocks:
            return
        self._hash_blocks(sequence, num_full)
        for index in range(sequence.num_registered_blocks, num_full):
            self._register_block(sequence, index)
        sequence.num_registered_blocks = num_full

    def fork(self, parent: "TokenSequence", branch: "TokenSequence") -> None:
        """The branch shares its parent's blocks; `grow` copies the last one before it is written."""
        for block in parent.block_table:
            self._pool.hold(block)
        branch.block_table = parent.block_table.copy()
        branch.num_computed_tokens = parent.num_computed_tokens
        branch.num_registered_blocks = parent.num_registered_blocks

    def release(self, sequence: "TokenSequence") -> None:
        self._pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        sequence.num_registered_blocks = 0

    def end_step(self) -> None:
        """The step's block copies are made."""
        if self._copy_sources:
            self._pool.release(self._copy_sources)
            self._copy_sources = []

    def reset_prefix_cache(self) -> None:
        self._pool.forget_idle()

    def _is_shared(self, block: int) -> bool:
        references = self._pool.references(block)
        return references > 1 and references - self._copy_sources.count(block) > 1

    def _register_block(self, sequence: "TokenSequence", index: int) -> None:
        block_hash, own = sequence.block_hashes[index], sequence.block_table[index]
        known = self._cache.block_of(block_hash)
        if known is None:
            self._cache.insert(block_hash, own)
        elif known != own:
            self._pool.hold(known)
            self._pool.release([own])
            sequence.block_table[index] = known

    def _hash_blocks(self, sequence: "TokenSequence", num_blocks: int) -> None:
        hashes = sequence.block_hashes
        if len(hashes) >= num_blocks:
            return
        parent = hashes[-1] if hashes else self._hasher.root(sequence.request.request.cache_salt)
        for index in range(len(hashes), num_blocks):
            start = index * self.block_size
            parent = self._hasher.extend(parent, sequence.token_ids(start, start + self.block_size))
            hashes.append(parent)

    def check_invariants(self, sequences: "Iterable[TokenSequence]") -> None:
        """`sequences` are all that hold blocks."""
        self._pool.check_invariants()
        holders = Counter(self._copy_sources)
        for sequence in sequences:
            holders.update(sequence.block_table)
            self._check_sequence(sequence)
        for block in range(self._pool.num_blocks):
            if holders[block] != self._pool.references(block):
                counted = self._pool.references(block)
                raise AssertionError(f"block {block}: {holders[block]} holders, {counted} counted")

    def _check_sequence(self, sequence: "TokenSequence") -> None:
        if sequence.num_computed_tokens > len(sequence.block_table) * self.block_size:
            raise AssertionError(f"sequence {sequence.sequence_id} has more computed tokens than room")
        for index in range(sequence.num_registered_blocks):
            if self._cache.block_of(sequence.block_hashes[index]) != sequence.block_table[index]:
                raise AssertionError(
                    f"block {index} of sequence {sequence.sequence_id} is not the cached one"
                )
