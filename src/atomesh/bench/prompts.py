"""Prompts of given lengths without a tokenizer: random token ids, or words that most vocabularies hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from atomesh.errors import ConfigurationError

_COMMON_WORDS = """
the of and to in is it you that he was for on are with as his they be at one have this from or had by
hot but some what there we can out other were all your when up use word how said an each she which do
their time if will way about many then them would write like so these her long make thing see him two
has look more day could go come did my sound no most number who over know water than call first people
may down side been now find any new work part take get place made live where after back little only
round man year came show every good me give our under name very through just form much great think say
help low line before turn cause same mean differ move right boy old too does tell sentence set three
want air well also play small end put home read hand port large spell add even land here must big high
such follow act why ask men change went light kind off need house picture try us again animal point
mother world near build self earth father head stand own page should country found answer school grow
study still learn plant cover food sun four thought let keep eye never last door between city tree cross
since hard start
"""
WORDS = tuple(_COMMON_WORDS.split())


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of `tokens` tokens.

    Equal (space, key) begin with the same tokens, so that prompts share a prefix on purpose.
    """

    space: int
    key: int
    tokens: int


class PromptWriter(Protocol):
    def write(self, segments: Sequence[Segment]) -> list[int] | str:
        """The prompt in the form in which it is sent; the same segments give the same prompt."""
        ...


class TokenIdWriter:
    """Exactly as many tokens as asked.

    Ids come from the upper three quarters of the vocabulary, clear of most special tokens.
    """

    def __init__(self, vocab_size: int, seed: int) -> None:
        if vocab_size < 4:
            raise ConfigurationError(f"the vocabulary size is {vocab_size}; at least 4 ids are needed")
        self._low, self._high, self._seed = vocab_size // 4, vocab_size, seed

    def write(self, segments: Sequence[Segment]) -> list[int]:
        ids: list[int] = []
        for segment in segments:
            ids += _draw(segment, self._seed, self._low, self._high)
        return ids


class WordWriter:
    """About as many tokens as asked; what the server counted is in its usage."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def write(self, segments: Sequence[Segment]) -> str:
        return " ".join(
            WORDS[index] for segment in segments for index in _draw(segment, self._seed, 0, len(WORDS))
        )


def _draw(segment: Segment, seed: int, low: int, high: int) -> list[int]:
    rng = np.random.default_rng([seed, segment.space, segment.key])
    drawn: list[int] = rng.integers(low, high, size=segment.tokens).tolist()
    return drawn
