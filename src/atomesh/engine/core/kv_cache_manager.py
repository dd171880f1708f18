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
from atomesh.engine.core.kv_journal import KVJournal
from atomesh.engine.core.prefix_cache import PrefixCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atomesh.engine.core.request import TokenSequence
    from atomesh.protocol.block_hash import BlockHash, BlockHasher


class KVCacheManager:
    def __init__(self, num_blocks: int, hasher: "BlockHasher", *, enable_prefix_cache: bool) -> None:
        self.block_size = hasher.block_size
        self._hasher = hasher
        self._is_caching = enable_prefix_cache
        self._cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self._cache)
        self._copy_sources: list[int] = []  # held until the step that copies them is over

    @property
    def journal(self) -> KVJournal:
        """What has come into the prefix cache, and gone."""
        return self._cache.journal

    def match(self, sequence: "TokenSequence") -> list[int]:
        """Cached blocks of the longest known prefix that leaves a token to compute. Takes nothing."""
        if not self._is_caching or sequence.wants_prompt_logprobs:
            return []
        num_blocks = (sequence.num_tokens - 1) // self.block_size
        return self.match_hashes(self.full_hashes(sequence, num_blocks * self.block_size))

    def can_find(self, sequence: "TokenSequence") -> bool:
        """Whether what is cached is of use to it at all."""
        return self._is_caching and not sequence.wants_prompt_logprobs

    def match_hashes(self, block_hashes: "Sequence[BlockHash]") -> list[int]:
        """Cached blocks of the longest known run from the first hash on. Takes nothing."""
        return self._cache.longest_match(block_hashes) if self._is_caching else []

    def full_hashes(self, sequence: "TokenSequence", num_tokens: int) -> "list[BlockHash]":
        """The hashes of the full blocks among the sequence's first `num_tokens` tokens."""
        num_blocks = num_tokens // self.block_size
        self._hash_blocks(sequence, num_blocks)
        return sequence.block_hashes[:num_blocks]

    def num_blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def has_room(self, num_tokens: int, matched: list[int], reserve: int) -> bool:
        """Room for `num_tokens` tokens, the `matched` blocks shared, with `reserve` blocks to spare."""
        missing = self.num_blocks_of(num_tokens) - len(matched)
        revived = sum(map(self.pool.is_idle, matched))
        return missing + revived + reserve <= self.pool.num_available

    def fits(self, sequence: "TokenSequence") -> bool:
        """It would be admitted if nothing else ran."""
        return self.has_room(sequence.num_tokens, self.match(sequence), 0)

    def admit(self, sequence: "TokenSequence", matched: list[int], reserve: int) -> bool:
        """Blocks for all known tokens, the `matched` shared; False if less than `reserve` would be left."""
        if not self.has_room(sequence.num_tokens, matched, reserve):
            return False
        self.hold(matched)
        missing = self.num_blocks_of(sequence.num_tokens) - len(matched)
        sequence.block_table = matched + [self.pool.take() for _ in range(missing)]
        sequence.num_computed_tokens = len(matched) * self.block_size
        sequence.num_registered_blocks = len(matched)
        return True

    def grow(self, sequence: "TokenSequence", copies: list[BlockCopy]) -> bool:
        """Room of its own for all uncomputed tokens; False if blocks lack. May add to `copies`."""
        table = sequence.block_table
        first = sequence.num_computed_tokens // self.block_size
        is_shared = first < len(table) and self._is_shared(table[first])
        missing = self.num_blocks_of(sequence.num_tokens) - len(table)
        if missing + is_shared > self.pool.num_available:
            return False
        if is_shared:
            block = self.pool.take()
            copies.append(BlockCopy(source=table[first], target=block))
            self._copy_sources.append(table[first])
            table[first] = block
        table += [self.pool.take() for _ in range(missing)]
        return True

    def register(self, sequence: "TokenSequence") -> None:
        """The sequence's full computed blocks can be found by others from now on."""
        num_full = sequence.num_computed_tokens // self.block_size
        if not self._is_caching or num_full == sequence.num_registered_blocks:
            return
        self._hash_blocks(sequence, num_full)
        for index in range(sequence.num_registered_blocks, num_full):
            self.register_block(sequence.block_hashes[index], sequence.block_table, index)
        sequence.num_registered_blocks = num_full

    def register_block(self, block_hash: "BlockHash", table: list[int], index: int) -> bool:
        """`table[index]` is full and can be found by others from now on; or gives way to one that can be.

        False, and nothing happens, without a prefix cache.
        """
        if not self._is_caching:
            return False
        own, known = table[index], self._cache.block_of(block_hash)
        if known is None:
            self._cache.insert(block_hash, own, table[index - 1] if index else None)
        elif known != own:
            self.pool.hold(known)
            self.pool.release([own])
            table[index] = known
        return True

    def fork(self, parent: "TokenSequence", branch: "TokenSequence") -> None:
        """The branch shares its parent's blocks; `grow` copies the last one before it is written."""
        computed, registered = parent.num_computed_tokens, parent.num_registered_blocks
        self.adopt(branch, parent.block_table, computed, registered)

    def adopt(
        self, sequence: "TokenSequence", table: list[int], num_tokens: int, num_registered: int
    ) -> None:
        """The sequence shares `table`, which holds the KV of its first `num_tokens` tokens."""
        self.hold(table)
        sequence.block_table = table.copy()
        sequence.num_computed_tokens = num_tokens
        sequence.num_registered_blocks = num_registered
        self._hash_blocks(sequence, num_registered)

    def release(self, sequence: "TokenSequence") -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        sequence.num_registered_blocks = 0

    def hold(self, blocks: "Iterable[int]") -> None:
        for block in blocks:
            self.pool.hold(block)

    def let_go(self, blocks: "Sequence[int]") -> None:
        self.pool.release(blocks)

    @property
    def num_holds(self) -> int:
        """Blocks that are held for being copied in this step, each for each copy."""
        return len(self._copy_sources)

    def end_step(self) -> None:
        """The step's block copies are made."""
        if self._copy_sources:
            self.pool.release(self._copy_sources)
            self._copy_sources = []

    def reset_prefix_cache(self) -> None:
        self.pool.forget_idle()

    def _is_shared(self, block: int) -> bool:
        references = self.pool.references(block)
        return references > 1 and references - self._copy_sources.count(block) > 1

    def _hash_blocks(self, sequence: "TokenSequence", num_blocks: int) -> None:
        hashes = sequence.block_hashes
        if len(hashes) >= num_blocks:
            return
        parent = hashes[-1] if hashes else self._hasher.root(sequence.request.request.cache_salt)
        start, end = len(hashes) * self.block_size, num_blocks * self.block_size
        hashes += self._hasher.extend_all(parent, sequence.token_ids(start, end))

    def check_invariants(self, sequences: "Iterable[TokenSequence]", others: "Iterable[int]" = ()) -> None:
        """`sequences` are all that hold blocks, but for `others`: each once for each hold."""
        self.pool.check_invariants()
        holders = Counter(self._copy_sources)
        holders.update(others)
        for sequence in sequences:
            holders.update(sequence.block_table)
            self._check_sequence(sequence)
        for block in range(self.pool.num_blocks):
            if holders[block] != self.pool.references(block):
                counted = self.pool.references(block)
                raise AssertionError(f"block {block}: {holders[block]} holders, {counted} counted")

    def _check_sequence(self, sequence: "TokenSequence") -> None:
        if sequence.num_computed_tokens > len(sequence.block_table) * self.block_size:
            raise AssertionError(f"sequence {sequence.sequence_id} has more computed tokens than room")
        for index in range(sequence.num_registered_blocks):
            if self._cache.block_of(sequence.block_hashes[index]) != sequence.block_table[index]:
                raise AssertionError(
                    f"block {index} of sequence {sequence.sequence_id} is not the cached one"
                )
