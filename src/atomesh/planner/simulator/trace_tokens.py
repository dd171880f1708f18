"""Prompts of which only the identity of each block is known, in the shape that engine and mesh read.

A trace names the blocks of a prompt, not its tokens. Every token of a block stands for the block's id, so a
prompt takes as little memory as its ids, and a block's hash is its id: nothing is hashed.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from atomesh.protocol.block_hash import HASH_BYTES, BlockHash, BlockHasher

MAX_KNOWN_HASHES = 2**18


class TraceTokens(Sequence[int]):
    """`num_tokens` tokens in blocks of `block_size`; `block_ids` has an id for each, the partial one too."""

    __slots__ = ("_block_ids", "_block_size", "_end", "_start")

    def __init__(self, block_ids: Sequence[int], num_tokens: int, block_size: int) -> None:
        if len(block_ids) != -(-num_tokens // block_size):
            raise ValueError(
                f"{num_tokens} tokens have {-(-num_tokens // block_size)} blocks of {block_size}, "
                f"not {len(block_ids)}"
            )
        self._block_ids = block_ids
        self._block_size = block_size
        self._start = 0
        self._end = num_tokens

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, key: Any) -> Any:
        """Slices have step 1 and share the ids."""
        if isinstance(key, slice):
            start, end, _ = key.indices(self._end - self._start)
            part = TraceTokens.__new__(TraceTokens)
            part._block_ids, part._block_size = self._block_ids, self._block_size
            part._start, part._end = self._start + start, self._start + max(start, end)
            return part
        position = key if key >= 0 else len(self) + key
        if not 0 <= position < len(self):
            raise IndexError(f"position {key} is not among {len(self)} tokens")
        return self._block_ids[(self._start + position) // self._block_size]

    def as_prompt(self) -> list[int]:
        """Itself, by the type that a request declares; its readers only take lengths, items and slices."""
        return cast("list[int]", self)


class TraceHasher(BlockHasher):
    """Names a block by the id that its tokens stand for, which in a trace names all before it too."""

    def __init__(self, block_size: int) -> None:
        super().__init__(b"", "trace", block_size)

    def root(self, salt: str = "", adapter: str = "") -> BlockHash:
        return BlockHash(bytes(HASH_BYTES))

    def extend(self, parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
        return hash_of_id(token_ids[0])

    def extend_all(self, parent: BlockHash, token_ids: Sequence[int]) -> list[BlockHash]:
        size = self.block_size
        return [hash_of_id(token_ids[start]) for start in range(0, len(token_ids) - size + 1, size)]


@lru_cache(maxsize=MAX_KNOWN_HASHES)
def hash_of_id(block_id: int) -> BlockHash:
    """Both halves tell blocks apart, as a real hash's do; none is the root's, which is all zeros."""
    half = (block_id + 1).to_bytes(HASH_BYTES // 2, "little")
    return BlockHash(half + half)
