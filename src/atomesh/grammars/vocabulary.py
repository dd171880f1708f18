"""What a grammar has to know of a model's tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class SpellsTokens(Protocol):
    """The text side's tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    def encode(
        self, text: str, *, add_special_tokens: bool = ..., parse_special: bool = ...
    ) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens[i]` is what id `i` adds to a text, no byte for an id that stands for nothing.

    `special_ids` are those that no text becomes; a grammar can name them (`<|name|>`). `eos_ids` end an
    answer; empty for a model that never ends one. `encode` gives the ids that a text usually has, the empty
    list where it does not know: any spelling is a right one.
    """

    tokens: Sequence[bytes]
    special_ids: Sequence[int]
    eos_ids: Sequence[int]
    encode: Callable[[str], Sequence[int]]


def vocabulary_of(tokenizer: SpellsTokens, vocab_size: int, eos_ids: Sequence[int]) -> Vocabulary:
    """Of the ids that a model of `vocab_size` has, as far as they stand for something."""
    size = min(max(tokenizer.vocab_size, *(token_id + 1 for token_id in eos_ids), 0), vocab_size)

    def encode(text: str) -> Sequence[int]:
        return _encode_amid(tokenizer, text)

    return Vocabulary(
        tokens=[tokenizer.token_bytes(token_id) for token_id in range(size)],
        special_ids=[token_id for token_id in range(size) if tokenizer.is_special(token_id)],
        eos_ids=[token_id for token_id in eos_ids if token_id < size],
        encode=encode,
    )


def _encode_amid(tokenizer: SpellsTokens, text: str) -> Sequence[int]:
    """The ids of `text` where it does not begin a text: some tokenizers put a space before what does."""
    ids = tokenizer.encode("\n" + text, add_special_tokens=False, parse_special=False)
    wanted = text.encode()
    spelled, start = b"", len(ids)
    while start > 0 and len(spelled) < len(wanted):
        start -= 1
        spelled = tokenizer.token_bytes(ids[start]) + spelled
    return ids[start:] if spelled == wanted else []
