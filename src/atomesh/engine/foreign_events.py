"""Our prefix cache's events in vLLM's words: blocks with their tokens."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping

from atomesh.engine.recording_hasher import HashedBlock
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_events import BlocksRemoved, BlocksStored, KVEvent, KVEvents
from atomesh.protocol.vllm_kv_events import (
    DEVICE_MEDIUM,
    ForeignCleared,
    ForeignEvent,
    ForeignRemoved,
    ForeignStored,
)

Recall = Callable[[BlockHash], HashedBlock | None]


class ForeignWords:
    """A block whose tokens are not known yet, handed over by another worker, is told once they are."""

    def __init__(self, recall: Recall, block_size: int, max_untold: int) -> None:
        """Of the blocks not told yet `max_untold` are remembered, the last ones."""
        self._recall = recall
        self._block_size = block_size
        self._max_untold = max_untold
        self._untold: OrderedDict[BlockHash, None] = OrderedDict()
        self._sequence = 0

    def of(self, batch: KVEvents, held: Callable[[], Iterable[bytes]]) -> list[ForeignEvent]:
        """What to publish after this batch. `held` says all that is held, for when the batch could not."""
        is_gap = batch.sequence > self._sequence + bool(batch.events)
        self._sequence = batch.sequence
        if is_gap:
            self._untold.clear()
            return [ForeignCleared(), *self._stored(held())]
        told: list[ForeignEvent] = list(self._stored([one for one in self._untold if self._recall(one)]))
        for event in batch.events:
            told += self._event(event)
        return told

    def _event(self, event: KVEvent) -> Iterator[ForeignEvent]:
        if isinstance(event, BlocksStored):
            yield from self._stored(event.hashes)
        elif isinstance(event, BlocksRemoved):
            gone = [BlockHash(one) for one in event.hashes]
            told: list[int | bytes] = [number_of(one) for one in gone if self._untold.pop(one, self) is self]
            if told:
                yield ForeignRemoved(told, DEVICE_MEDIUM)
        else:
            self._untold.clear()
            yield ForeignCleared()

    def _stored(self, hashes: Iterable[bytes]) -> Iterator[ForeignStored]:
        known = {one: block for raw in hashes if (block := self._known(one := BlockHash(raw))) is not None}
        run: list[BlockHash] = []
        for block_hash in _parents_first(known):
            if run and known[block_hash].parent != run[-1]:
                yield self._run(run, known)
                run = []
            run.append(block_hash)
        if run:
            yield self._run(run, known)

    def _known(self, block_hash: BlockHash) -> HashedBlock | None:
        block = self._recall(block_hash)
        if block is not None:
            self._untold.pop(block_hash, None)
            return block
        self._untold[block_hash] = None
        if len(self._untold) > self._max_untold:
            self._untold.popitem(last=False)
        return None

    def _run(self, run: list[BlockHash], known: Mapping[BlockHash, HashedBlock]) -> ForeignStored:
        blocks = [known[one] for one in run]
        parent = blocks[0].parent
        return ForeignStored(
            block_hashes=[number_of(one) for one in run],
            token_ids=[token_id for block in blocks for token_id in block.token_ids],
            block_size=self._block_size,
            parent_block_hash=None if parent is None else number_of(parent),
            medium=DEVICE_MEDIUM,
            extra_keys=[[block.salt] if block.salt and block.parent is None else None for block in blocks],
        )


def number_of(block_hash: bytes) -> int:
    """A block's name to others, as short as vLLM's."""
    return int.from_bytes(block_hash[-8:], "big")


def _parents_first(blocks: Mapping[BlockHash, HashedBlock]) -> Iterator[BlockHash]:
    done: set[BlockHash] = set()
    for block_hash in blocks:
        path: list[BlockHash] = []
        current: BlockHash | None = block_hash
        while current is not None and current in blocks and current not in done:
            path.append(current)
            done.add(current)
            current = blocks[current].parent
        yield from reversed(path)
