"""What comes between a prefix and a suffix: the prompts that models trained to fill in the middle know.

Training by the transformation of Bavarian et al., "Efficient Training of Language Models to Fill in the
Middle" (arXiv:2207.14255); each family has its own names for the marks and its own order.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from atomesh.errors import InvalidRequestError

if TYPE_CHECKING:
    from atomesh.frontend.text.tokenizer import Tokenizer

_ANCHOR = "☺"  # a character that no token has together with what follows


@dataclass(frozen=True, slots=True)
class FimFamily:
    """`before` is the mark in front of the first part, `between` that of the second, `after` ends both.

    `first` says which part that is. Any of `ends` that the vocabulary has ends an answer, beside the model's
    own end tokens.
    """

    name: str
    before: str
    between: str
    after: str | None
    first: Literal["prefix", "suffix"] = "prefix"
    ends: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.before, self.between, *([] if self.after is None else [self.after]))


FAMILIES = (
    FimFamily(
        "Qwen, CodeGemma, Granite 3 and later",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ends=("<|fim_pad|>", "<|file_sep|>", "<|file_separator|>", "<|repo_name|>", "<|endoftext|>"),
    ),
    FimFamily(
        "StarCoder, Granite Code",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ends=("<fim_pad>", "<file_sep>", "<|endoftext|>"),
    ),
    FimFamily("DeepSeek", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    FimFamily("Code Llama", "▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    FimFamily("Codestral", "[SUFFIX]", "[PREFIX]", None, first="suffix"),
)


@dataclass(frozen=True, slots=True)
class FillInTheMiddle:
    """A family's marks as ids of one tokenizer; `end_token_ids` end an answer."""

    family: FimFamily
    mark_ids: tuple[int, ...]
    end_token_ids: tuple[int, ...]

    def encode(
        self, tokenizer: "Tokenizer", prefix: str | Sequence[int], suffix: str, *, adds_bos: bool
    ) -> list[int]:
        """The prompt whose answer is what comes between. Marks in the texts are read as plain text."""
        ids = [*prefix] if not isinstance(prefix, str) else self._plain(tokenizer, prefix)
        parts = [ids, self._encode_suffix(tokenizer, suffix)]
        if self.family.first == "suffix":
            parts.reverse()
        before, between, *after = self.mark_ids
        return [*_bos(tokenizer, adds_bos), before, *parts[0], between, *parts[1], *after]

    def _encode_suffix(self, tokenizer: "Tokenizer", suffix: str) -> list[int]:
        """Without the space that SentencePiece puts before a text: this one goes on after another."""
        if not tokenizer.puts_space_first:
            return self._plain(tokenizer, suffix)
        anchor = len(self._plain(tokenizer, _ANCHOR))
        return self._plain(tokenizer, _ANCHOR + suffix)[anchor:]

    def _plain(self, tokenizer: "Tokenizer", text: str) -> list[int]:
        """Each mark in the text is cut after its first character, so that it is none."""
        pattern = "|".join(
            f"(?<={re.escape(mark[0])})(?={re.escape(mark[1:])})" for mark in self.family.marks
        )
        return [
            token_id
            for piece in re.split(pattern, text)
            for token_id in tokenizer.encode(piece, add_special_tokens=False, parse_special=False)
        ]


def fill_in_the_middle(tokenizer: "Tokenizer") -> FillInTheMiddle:
    """By the marks that the tokenizer has. Raises InvalidRequestError where it has no family's."""
    for family in FAMILIES:
        mark_ids = _known(tokenizer, family.marks)
        if len(mark_ids) == len(family.marks):
            return FillInTheMiddle(family, mark_ids, _known(tokenizer, family.ends))
    raise InvalidRequestError(
        "suffix needs a model with fill-in-the-middle tokens, and this one's vocabulary has none of "
        f"{', '.join(family.before for family in FAMILIES)}; remove it, or ask a model trained for it",
        param="suffix",
    )


def _known(tokenizer: "Tokenizer", texts: Sequence[str]) -> tuple[int, ...]:
    found = (tokenizer.token_id(text) for text in texts)
    return tuple(token_id for token_id in found if token_id is not None)


def _bos(tokenizer: "Tokenizer", adds_bos: bool) -> list[int]:
    """What the tokenizer itself puts in front of a text."""
    first = tokenizer.encode("", add_special_tokens=True)[:1] if adds_bos else []
    return first if first == [tokenizer.bos_token_id] else []
