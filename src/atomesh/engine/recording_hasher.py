"""A block hasher that remembers what it hashed, for those who publish blocks with their tokens."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from atomesh.protocol.block_hash import BlockHash, BlockHasher

MAX_ROOTS = 4096


@dataclass(frozen=True, slots=True)
class HashedBlock:
    """`parent` is None for a prompt's first block; `salt` is that of the prompt."""

    parent: BlockHash | None
    token_ids: tuple[int, ...]
    salt: str


class RecordingHasher(BlockHasher):
    """Remembers the last `max_blocks` blocks."""

    def __init__(self, secret: bytes, model: str, block_size: int, max_blocks: int) -> None:
        super().__init__(secret, model, block_size)
        self._max_blocks = max_blocks
        self._salts: OrderedDict[BlockHash, str] = OrderedDict()
        self._blocks: OrderedDict[BlockHash, HashedBlock] = OrderedDict()

    def root(self, salt: str = "", adapter: str = "") -> BlockHash:
        root = super().root(salt, adapter)
        self._salts[root] = salt
        self._salts.move_to_end(root)
        if len(self._salts) > MAX_ROOTS:
            self._salts.popitem(last=False)
        return root

    def extend(self, parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
        block_hash = super().extend(parent, token_ids)
        salt = self._salts.get(parent)
        before = self._blocks.get(parent)
        if salt is not None:
            self._remember(block_hash, HashedBlock(None, tuple(token_ids), salt))
        elif before is not None:
            self._remember(block_hash, HashedBlock(parent, tuple(token_ids), before.salt))
        return block_hash

    def recall(self, block_hash: BlockHash) -> HashedBlock | None:
        return self._blocks.get(block_hash)

    def _remember(self, block_hash: BlockHash, block: HashedBlock) -> None:
        self._blocks[block_hash] = block
        self._blocks.move_to_end(block_hash)
        if len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
