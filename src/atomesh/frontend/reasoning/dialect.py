"""What differs between the models that reason before they answer."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from atomesh.frontend.answer.answer_parser import AnswerParser
from atomesh.protocol.reasoning import ReasoningSpec


class Opening(Enum):
    """Where the answer is when its first token comes."""

    INSIDE = "inside"  # the prompt has opened the reasoning
    CLOSED = "closed"  # the prompt has ended it: all that comes is for the reader
    OPEN = "open"  # the model decides


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """What is known of an answer before it comes: the last of the prompt's text, what it may call.

    `mint_id` makes a call's id of its function's name and its index.
    """

    prompt_end: str
    opening: Opening
    tools: Collection[str]
    mint_id: Callable[[str, int], str]


class ReasoningDialect(Protocol):
    @property
    def name(self) -> str:
        """As --reasoning-parser has it."""
        ...

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        """What the parser must see, though these may be special tokens."""
        ...

    @property
    def reasons_unasked(self) -> bool:
        """Whether models of the dialect reason where neither prompt nor client says anything of it."""
        ...

    def is_in(self, template: str) -> bool:
        """Whether the text of a chat template shows that its model speaks this dialect."""
        ...

    def find_opening(self, prompt_end: str, *, is_continued: bool) -> Opening:
        """`prompt_end` is the last of the prompt's text; `is_continued`: it is the answer's own beginning."""
        ...

    def make_parser(self, start: AnswerStart, inner: AnswerParser) -> AnswerParser:
        """Of one choice; what is not reasoning goes to `inner`, unless the dialect reads all by itself."""
        ...

    def limits(self, encode: Callable[[str], tuple[int, ...]]) -> ReasoningSpec:
        """Where the reasoning begins and ends, in token ids, with no limit; `encode` knows special tokens."""
        ...

    def answer_opening(self) -> str:
        """What a model says between its reasoning and an answer to the reader, "" for nothing."""
        ...

    def effort_variables(self, effort: str) -> dict[str, Any]:
        """The template's variables for an effort of OpenAI's names."""
        ...

    def adapt_message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """An earlier answer with `reasoning_content` as the template of such models takes it."""
        ...
