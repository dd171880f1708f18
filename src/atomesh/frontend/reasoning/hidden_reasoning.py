"""For a client that does not want to see the reasoning: it is counted, and not given out."""

from atomesh.frontend.answer.answer_parser import AnswerParser
from atomesh.frontend.answer.parts import Part, ReasoningDelta


class HiddenReasoning:
    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser

    @property
    def has_called(self) -> bool:
        return self._parser.has_called

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def feed(self, text: str, num_tokens: int, *, is_final: bool) -> list[Part]:
        parts = self._parser.feed(text, num_tokens, is_final=is_final)
        return [part for part in parts if not isinstance(part, ReasoningDelta)]
