"""The door between one choice's text and its parts: every dialect of every model is behind it."""

from typing import Protocol

from atomesh.frontend.answer.parts import ContentDelta, Part


class AnswerParser(Protocol):
    """Of one choice. However its text is cut into pieces, the joined parts are the same."""

    @property
    def has_called(self) -> bool:
        """Whether tools were called, the last one with whole arguments."""
        ...

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens so far were spent on reasoning."""
        ...

    def feed(self, text: str, num_tokens: int, *, is_final: bool) -> list[Part]:
        """The parts that `text`, made of `num_tokens` tokens, completes; `is_final` releases what is held."""
        ...


class PlainAnswer:
    """An answer of which every word is for the reader."""

    has_called = False
    reasoning_tokens = 0

    def feed(self, text: str, num_tokens: int, *, is_final: bool) -> list[Part]:
        return [ContentDelta(text)] if text else []
