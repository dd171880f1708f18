"""GPT-OSS's harmony: an answer is messages, each to the reader, to the model itself or to a function."""

from collections.abc import Callable, Collection

from atomesh.frontend.answer.last_call import LastCall
from atomesh.frontend.answer.parts import (
    ContentDelta,
    Part,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from atomesh.frontend.reasoning.harmony_header import (
    CONTENT,
    ENDS,
    MESSAGE,
    REASONING,
    Kind,
    MessageKind,
    may_begin_header,
    read_header,
)
from atomesh.frontend.reasoning.partial_match import count_partial
from atomesh.frontend.reasoning.token_shares import TokenShares

_LONGEST_HEADER = 512


class HarmonyParser:
    """An AnswerParser of one choice. Several messages of one kind are joined by a newline.

    A call of a function that is not among `tools` is reasoning. An answer that does not begin with a header
    is content up to the first mark; what follows a mark and is too long for a header is reasoning.
    """

    def __init__(
        self, tools: Collection[str], mint_id: Callable[[str, int], str], prompt_end: str = ""
    ) -> None:
        """`prompt_end` is what the prompt already has of the answer's first message."""
        self._tools = tools
        self._mint_id = mint_id
        self._message: MessageKind | None = None
        self._held = ""
        self._is_first = True
        self._has_said: set[Kind] = set()
        self._needs_break = False
        self._num_calls = 0
        self._last_call = LastCall()
        self._is_bare_call = False
        self._shares = TokenShares()
        self.feed(prompt_end, 0, is_final=False)

    @property
    def has_called(self) -> bool:
        return self._last_call.is_whole

    @property
    def reasoning_tokens(self) -> int:
        return self._shares.reasoning

    def feed(self, text: str, num_tokens: int, *, is_final: bool) -> list[Part]:
        self._shares.came(len(text), num_tokens)
        self._held += text
        parts: list[Part] = []
        is_going_on = True
        while is_going_on:
            if self._message is None:
                is_going_on = self._read_header(parts)
            else:
                is_going_on = self._read_text(self._message, parts, is_final=is_final)
        if is_final:
            self._end_message(parts)
        return parts

    def _read_header(self, parts: list[Part]) -> bool:
        """True when the message's text has begun."""
        if self._is_first and not may_begin_header(self._held):
            return self._begin(CONTENT, parts)
        place = self._held.find(MESSAGE)
        size = len(self._held) - len(MESSAGE) if place < 0 else place
        if size > _LONGEST_HEADER:
            return self._begin(REASONING, parts)
        if place < 0:
            return False
        message = read_header(self._held[:place])
        self._skip(place + len(MESSAGE))
        if message.kind is Kind.CALL and message.name not in self._tools:
            message = REASONING
        return self._begin(message, parts)

    def _begin(self, message: MessageKind, parts: list[Part]) -> bool:
        self._is_first = False
        self._message = message
        self._needs_break = message.kind in self._has_said
        if message.kind is Kind.CALL:
            index = self._num_calls
            self._num_calls += 1
            self._last_call.begin()
            self._is_bare_call = True
            parts.append(ToolCallStart(index, self._mint_id(message.name, index), message.name))
        return True

    def _read_text(self, message: MessageKind, parts: list[Part], *, is_final: bool) -> bool:
        """True when the message has ended, and more may follow."""
        found = [place for mark in ENDS if (place := self._held.find(mark)) >= 0]
        if found:
            self._say(message, self._held[: min(found)], parts)
            self._skip(self._held.index(">") + 1)
            self._end_message(parts)
            return True
        kept = 0 if is_final else count_partial(self._held, ENDS)
        self._say(message, self._held[: len(self._held) - kept], parts)
        return False

    def _say(self, message: MessageKind, text: str, parts: list[Part]) -> None:
        if not text:
            return
        self._held = self._held[len(text) :]
        if message.kind is Kind.CALL:
            self._shares.outside(len(text))
            self._is_bare_call = self._is_bare_call and not text.strip()
            self._give(text, parts)
            return
        said = "\n" + text if self._needs_break else text
        self._needs_break = False
        self._has_said.add(message.kind)
        if message.kind is Kind.REASONING:
            self._shares.inside(len(text))
            parts.append(ReasoningDelta(said))
        else:
            self._shares.outside(len(text))
            parts.append(ContentDelta(said))

    def _give(self, arguments: str, parts: list[Part]) -> None:
        self._last_call.add(arguments)
        parts.append(ToolArgumentsDelta(self._num_calls - 1, arguments))

    def _end_message(self, parts: list[Part]) -> None:
        if self._message is not None and self._message.kind is Kind.CALL and self._is_bare_call:
            self._give("{}", parts)
            self._is_bare_call = False
        self._message = None

    def _skip(self, size: int) -> None:
        self._shares.outside(size, is_mark=True)
        self._held = self._held[size:]
