"""A small trace of conversations, in Mooncake's form: turns that repeat all that was said before."""

import json
from pathlib import Path
from random import Random

BLOCK_TOKENS = 512
TICK_MS = 3000


def write_conversation_trace(path: Path, num_requests: int, seed: int = 0) -> None:
    """Block 0 begins every conversation; each of them goes on after `TICK_MS` or more, or another begins."""
    rng = Random(seed)  # noqa: S311
    next_id = 1
    open_conversations: list[list[int]] = []
    lines = []
    for number in range(num_requests):
        if len(open_conversations) < 4 or rng.random() < 0.5:
            open_conversations.append([0])
        blocks = open_conversations[rng.randrange(len(open_conversations))]
        num_new = rng.randint(4, 16)
        blocks += range(next_id, next_id + num_new)
        partial_id = next_id + num_new
        next_id = partial_id + 1
        line = {
            "timestamp": number // 10 * TICK_MS,
            "input_length": len(blocks) * BLOCK_TOKENS + rng.randint(1, BLOCK_TOKENS),
            "output_length": 1,
            "hash_ids": [*blocks, partial_id],
        }
        lines.append(json.dumps(line))
        if len(blocks) > 80:
            open_conversations.remove(blocks)
    path.write_text("\n".join(lines) + "\n")
