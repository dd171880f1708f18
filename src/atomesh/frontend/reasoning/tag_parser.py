"""Reasoning between two tags, before the answer."""

from enum import Enum, auto

from atomesh.frontend.answer.answer_parser import AnswerParser
from atomesh.frontend.answer.parts import Part, ReasoningDelta
from atomesh.frontend.reasoning.partial_match import count_partial
from atomesh.frontend.reasoning.token_shares import TokenShares
from atomesh.frontend.reasoning.trimmed_text import TrimmedText

_MOST_WHITE_SPACE = 64  # before the tag that opens


class _Place(Enum):
    BEFORE = auto()
    INSIDE = auto()
    AFTER = auto()  # between the end of the reasoning and the answer's first character
    ANSWER = auto()


class TagParser:
    """What lies between `start` and `end` is reasoning, once, at the beginning; `inner` reads the rest.

    Newlines next to a tag are part of it. A tag later in the answer is text like any other. With
    `begins_inside` the first tag may be there once more, or not.
    """

    def __init__(self, start: str, end: str, inner: AnswerParser, *, begins_inside: bool) -> None:
        self._start = start
        self._end = end
        self._inner = inner
        self._place = _Place.BEFORE
        self._unless_opened = _Place.INSIDE if begins_inside else _Place.ANSWER
        self._held = ""
        self._reasoning = TrimmedText()
        self._shares = TokenShares()

    @property
    def has_called(self) -> bool:
        return self._inner.has_called

    @property
    def reasoning_tokens(self) -> int:
        return self._shares.reasoning

    @property
    def _has_begun_answer(self) -> bool:
        return self._place is _Place.ANSWER

    def feed(self, text: str, num_tokens: int, *, is_final: bool) -> list[Part]:
        if self._has_begun_answer:
            return self._inner.feed(text, num_tokens, is_final=is_final)
        self._shares.came(len(text), num_tokens)
        self._held += text
        parts: list[Part] = []
        if self._place is _Place.BEFORE:
            self._look_for_start(is_final)
        if self._place is _Place.INSIDE:
            parts += self._read_reasoning(is_final)
        if self._place is _Place.AFTER:
            self._skip_newlines()
        if self._has_begun_answer or is_final:
            text = self._take(len(self._held))
            self._shares.outside(len(text))
            parts += self._inner.feed(text, num_tokens, is_final=is_final)
        return parts

    def _look_for_start(self, is_final: bool) -> None:
        seen = self._held.lstrip()
        if seen.startswith(self._start):
            size = len(self._held) - len(seen) + len(self._start)
            self._shares.outside(len(self._take(size)), is_mark=True)
            self._place = _Place.INSIDE
        elif is_final or not self._start.startswith(seen) or len(self._held) > len(seen) + _MOST_WHITE_SPACE:
            self._place = self._unless_opened

    def _read_reasoning(self, is_final: bool) -> list[Part]:
        end = self._held.find(self._end)
        if end >= 0:
            said = self._take(end)
            self._shares.inside(len(said))
            self._shares.outside(len(self._take(len(self._end))), is_mark=True)
            self._place = _Place.AFTER
        else:
            kept = 0 if is_final else count_partial(self._held, (self._end,))
            said = self._take(len(self._held) - kept)
            self._shares.inside(len(said))
        text = self._reasoning.feed(said)
        return [ReasoningDelta(text)] if text else []

    def _skip_newlines(self) -> None:
        answer = self._held.lstrip("\n")
        self._shares.outside(len(self._take(len(self._held) - len(answer))))
        if answer:
            self._place = _Place.ANSWER

    def _take(self, size: int) -> str:
        taken, self._held = self._held[:size], self._held[size:]
        return taken
