"""The trace of benchmarks/routing.py: its arrivals and prefixes, scaled, as chats in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gateway_text import sentence

from atomesh.bench.trace import MOONCAKE_BLOCK_TOKENS, read_trace


@dataclass(frozen=True, slots=True)
class Chat:
    """Its user's words, at its moment of the run."""

    at_s: float
    text: str


def read_chats(path: Path, limit: int, seconds: float, block_words: int) -> list[Chat]:
    """The first `limit` requests within `seconds`; each block of the trace becomes `block_words` words.

    Equal blocks get equal words, and a last block that is not full fewer of them. Raises ConfigurationError.
    """
    entries = read_trace(path, limit)
    last_s = max(entry.at_s for entry in entries) or 1.0
    texts: dict[int, str] = {}
    return [
        Chat(
            entry.at_s * seconds / last_s,
            _text(
                entry.prefix_ids,
                entry.input_tokens * block_words // MOONCAKE_BLOCK_TOKENS,
                block_words,
                texts,
            ),
        )
        for entry in entries
    ]


def _text(block_ids: Sequence[int], num_words: int, block_words: int, texts: dict[int, str]) -> str:
    for block_id in block_ids:
        if block_id not in texts:
            texts[block_id] = sentence(block_words, Random(block_id))  # noqa: S311
    words = " ".join(texts[block_id] for block_id in block_ids).split()
    return " ".join(words[: max(num_words, 1)])
