"""What vLLM 0.32's own block pool said while prompts came and went, and where we then find them.

Recorded from `vllm.v1.core.block_pool.BlockPool`, 8 blocks of 4 tokens of which one is its null block,
through its own encoder: one batch for each prompt that is cached and one for each that is freed.
"""

import json
from pathlib import Path

from atomesh.mesh.kv_index.foreign import Translator
from atomesh.mesh.kv_index.foreign_order import ForeignFeed
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.protocol.block_hash import BlockHasher
from atomesh.protocol.vllm_kv_events import decode_batch

RECORDED = Path(__file__).with_name("vllm_block_pool_events.json")
HASHER = BlockHasher(b"secret", "model", 4)
SHORT, LONG = list(range(8)), list(range(100, 116))


def test_the_index_follows_vllm_s_own_block_pool() -> None:
    index = KVIndex()
    index.join("v")
    translator = Translator(HASHER)
    feed = ForeignFeed(index, "v", translator)

    def held(tokens: list[int], salt: str = "") -> int:
        return index.match(HASHER.chain(tokens, salt), 0.0).get("v", MatchedBlocks()).device

    found = []
    for sequence, batch in enumerate(json.loads(RECORDED.read_text())):
        feed.hear(sequence, decode_batch(bytes.fromhex(batch)))
        index.check_invariants()
        found.append((held(SHORT), held(SHORT, "tenant"), held(LONG)))

    assert found == [
        *[(2, 0, 0)] * 2,  # the short prompt
        *[(2, 2, 0)] * 2,  # the same under a salt
        *[(1, 2, 4)] * 2,  # the long one, which evicts the end of the first
        *[(2, 1, 4)] * 2,  # the short one again, which evicts its own beginning and a salted block
        (0, 0, 0),  # reset
    ]
    assert (translator.left_out, index.counts.gaps, len(index)) == ({}, 0, 0)
