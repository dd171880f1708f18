"""Dialects in which a tag begins the reasoning and another one ends it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atomesh.frontend.answer.answer_parser import AnswerParser
from atomesh.frontend.reasoning.dialect import AnswerStart, Opening
from atomesh.frontend.reasoning.tag_parser import TagParser
from atomesh.protocol.reasoning import ReasoningSpec


@dataclass(frozen=True, slots=True)
class TagDialect:
    """`marks`: any of them in a template's text tells the dialect; without any, only its name does.

    One that `opens_unseen` leaves the first tag out: all is reasoning until the last, if the prompt does not
    say otherwise.
    """

    name: str
    start: str
    end: str
    marks: tuple[str, ...] = ()
    opens_unseen: bool = False
    reasons_unasked: bool = True

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        return (self.start, self.end)

    def is_in(self, template: str) -> bool:
        return any(mark in template for mark in self.marks)

    def find_opening(self, prompt_end: str, *, is_continued: bool) -> Opening:
        if is_continued:
            is_inside = prompt_end.rfind(self.start) > prompt_end.rfind(self.end)
            return Opening.INSIDE if is_inside else Opening.CLOSED
        text = prompt_end.rstrip()
        if text.endswith(self.start):
            return Opening.INSIDE
        if text.endswith(self.end):
            return Opening.CLOSED
        return Opening.INSIDE if self.opens_unseen else Opening.OPEN

    def make_parser(self, start: AnswerStart, inner: AnswerParser) -> AnswerParser:
        if start.opening is Opening.CLOSED:
            return inner
        return TagParser(self.start, self.end, inner, begins_inside=start.opening is Opening.INSIDE)

    def limits(self, encode: Callable[[str], tuple[int, ...]]) -> ReasoningSpec:
        return ReasoningSpec(start=encode(self.start), end=encode(self.end))

    def answer_opening(self) -> str:
        return ""

    def effort_variables(self, effort: str) -> dict[str, Any]:
        thinks = effort != "none"
        return {"reasoning_effort": effort, "enable_thinking": thinks, "thinking": thinks}

    def adapt_message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        return message
