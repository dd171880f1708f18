"""One engine for all dialects: text to content and calls, by the dialect's table.

Characters are looked at one after the other, whatever pieces they come in, so that the parts, joined, depend
on the text alone. A call begins when its name is known to be one of the request's and its arguments begin.
What is no call is content to the letter: an unknown function, another shape, broken JSON. JSON that breaks
after the call has begun ends the call; what follows is content. Nothing is lost but the marks around calls,
and white space there.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from atomesh.frontend.answer.parts import Part
from atomesh.frontend.tool_calls.call_reader import CallReader, NoCallError, Reading, none_of
from atomesh.frontend.tool_calls.dialect import CallTable, Dialect
from atomesh.frontend.tool_calls.part_sink import PartSink


class ToolCallParser:
    """An AnswerParser of one choice."""

    reasoning_tokens = 0

    def __init__(
        self,
        dialect: Dialect,
        tools: Mapping[str, Mapping[str, Any]],
        mint_id: Callable[[str, int], str],
        *,
        max_calls: int | None = None,
        hidden: Collection[str] = (),
        must_call: bool = False,
    ) -> None:
        """`tools` are the parameters' schemas of what may be called, by name.

        `hidden` are texts of special tokens: where they are no part of a call, nobody is to see them.
        An answer that `must_call` is held to calls: its unfinished end is the beginning of one, no content.
        """
        self._sink = PartSink(mint_id)
        self._reader = CallReader(tools, self._sink, max_calls)
        self._tables = dialect.tables
        self._hidden = tuple(hidden)
        self._must_call = must_call
        openings = {table.opening for table in dialect.tables if table.opening}
        self._marks = tuple(sorted(openings.union(hidden)))
        self._plain = none_of(self._marks)
        self._held = ""  # what may become a mark
        self._is_start = any(not table.opening for table in dialect.tables)
        self._calls: Reading | None = None

    @property
    def has_called(self) -> bool:
        return self._sink.last_call.is_whole

    def feed(self, text: str, num_tokens: int, *, is_final: bool) -> list[Part]:
        self._reader.give(text)
        while self._reader.has_more:
            if self._calls is None:
                self._read_content()
            else:
                self._read_calls(self._calls)
        if is_final:
            self._finish()
        return self._sink.take(is_final=is_final)

    def _read_calls(self, calls: Reading) -> None:
        try:
            next(calls)
        except (StopIteration, NoCallError):
            self._leave()

    def _leave(self) -> None:
        reader = self._reader
        raw = reader.raw
        reader.account()
        reader.is_in_tail = False
        self._calls = None
        self._say(raw)

    def _read_content(self) -> None:
        if self._is_start:
            return self._read_start(self._reader.rest)
        if not self._held:
            self._sink.content(self._reader.run(self._plain))
        if self._reader.has_more:
            self._held += self._reader.pop()
            self._settle()
        return None

    def _read_start(self, rest: str) -> None:
        """White space, until it is known whether the answer begins with a call."""
        body = rest.lstrip()
        self._sink.content(rest[: len(rest) - len(body)])
        self._reader.skip(len(rest) - len(body))
        if body:
            self._is_start = False
            tables = [t for t in self._tables if not t.opening and body[0] in t.starts_with]
            if tables:
                self._calls = read_calls(self._reader, tables)

    def _settle(self) -> None:
        """Of what is held, only what may still become a mark stays."""
        while self._held:
            if self._held in self._marks:
                return self._meet(self._held)
            if any(mark.startswith(self._held) for mark in self._marks):
                return None
            self._sink.content(self._held[0])
            self._held = self._held[1:]
        return None

    def _meet(self, mark: str) -> None:
        self._held = ""
        tables = [table for table in self._tables if table.opening == mark]
        if tables:
            self._reader.account(but=mark)
            self._calls = read_calls(self._reader, tables)

    def _say(self, raw: str) -> None:
        """Content that turned out not to be part of a call."""
        for text in self._hidden:
            raw = raw.replace(text, "")
        self._sink.content(raw)

    def _finish(self) -> None:
        if self._calls is not None:
            if self._reader.is_in_tail or self._must_call:
                self._reader.account()
            self._leave()
        self._say("" if self._must_call else self._held)
        self._held = ""


def read_calls(reader: CallReader, tables: Sequence[CallTable]) -> Reading:
    """The calls behind an opening that `tables` share; what follows them decides which table holds."""
    yield from reader.space()
    following = yield from reader.peek()
    table = next((t for t in tables if not t.starts_with or following in t.starts_with), None)
    if table is None:
        raise NoCallError
    mark = table.first
    while True:
        yield from reader.literal(mark)
        yield from reader.space()
        yield from table.form.read(reader)
        reader.end_call()
        if table.call_end:
            yield from reader.space()
            yield from reader.literal(table.call_end)
            reader.account()
        ends = [text for text in (table.between, table.closing) if text]
        if not ends:
            return
        yield from reader.space()
        mark = yield from reader.one_of(ends)
        if mark == table.closing:
            reader.account()
            return
        reader.is_in_tail = False
        mark = ""
