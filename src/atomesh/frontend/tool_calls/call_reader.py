"""What a dialect reads calls with: characters as they come, each accounted for as a call's or given back.

Its readings are generators: they yield when they need more text, and raise NoCallError for what is no call.
"""

import json
import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any

from atomesh.frontend.tool_calls.json_scanner import JsonScanner
from atomesh.frontend.tool_calls.part_sink import PartSink

Reading = Generator[None, None, None]
MAX_NAME = 128  # characters of what should be a name or key
_SPACE = frozenset(" \t\n\r")


def none_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Any run of characters with which none of `texts` begins."""
    firsts = "".join(sorted({text[0] for text in texts}))
    return re.compile(f"[^{re.escape(firsts)}]*" if firsts else "(?s:.*)")


class NoCallError(Exception):
    """What is being read is no call, or no more of one."""


class CallReader:
    """`raw` is what has been read and is not part of a call yet: content, should the reading fail.

    In the `is_in_tail` of a complete call, what is read is layout: nothing, should the text end.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]], sink: PartSink, max_calls: int | None) -> None:
        """`tools` are the parameters' schemas of what may be called, by name."""
        self.tools = tools
        self.is_in_tail = False
        self._raw: list[str] = []
        self._sink = sink
        self._max_calls = max_calls
        self._text = ""
        self._place = 0

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    @property
    def has_more(self) -> bool:
        return self._place < len(self._text)

    @property
    def rest(self) -> str:
        """What has come and is not read yet."""
        return self._text[self._place :]

    def give(self, text: str) -> None:
        self._text, self._place = self.rest + text, 0

    def skip(self, count: int) -> None:
        """Read `count` characters that are accounted for."""
        self._place += count

    def account(self, but: str = "") -> None:
        """What was read so far is a call's, but its last characters."""
        self._raw = [but] if but else []

    def end_call(self) -> None:
        self.account()
        self.is_in_tail = True

    def begin(self, name: str, call_id: str | None = None) -> None:
        """A call, of which everything read so far is part. NoCallError when it may not be made."""
        if name not in self.tools or (
            self._max_calls is not None and self._sink.num_calls >= self._max_calls
        ):
            raise NoCallError
        self._sink.begin(name, call_id)
        self.account()

    def say(self, arguments: str) -> None:
        """More of the begun call's arguments, for which everything read so far stands."""
        self._sink.arguments(arguments)
        self.account()

    def pop(self) -> str:
        """The next character of what has come, which is accounted for."""
        self._place += 1
        return self._text[self._place - 1]

    def run(self, pattern: re.Pattern[str]) -> str:
        """What has come and matches `pattern`, if only nothing; it is accounted for."""
        found = pattern.match(self._text, self._place)
        if found is None:
            return ""
        self._place = found.end()
        return found[0]

    def more(self) -> Reading:
        """Returns when there is something to read."""
        while not self.has_more:
            yield

    def peek(self) -> Generator[None, None, str]:
        """The next character."""
        yield from self.more()
        return self._text[self._place]

    def take(self) -> Generator[None, None, str]:
        char = yield from self.peek()
        self._place += 1
        self._raw.append(char)
        return char

    def space(self) -> Reading:
        while (yield from self.peek()) in _SPACE:
            yield from self.take()

    def literal(self, text: str) -> Reading:
        for expected in text:
            if (yield from self.peek()) != expected:
                raise NoCallError
            yield from self.take()

    def one_of(self, texts: Sequence[str]) -> Generator[None, None, str]:
        """Which of `texts`, none a beginning of another, comes next."""
        read = ""
        while read not in texts:
            char = yield from self.peek()
            if not any(text.startswith(read + char) for text in texts):
                raise NoCallError
            read += yield from self.take()
        return read

    def name(self, allowed: str = "_.-") -> Generator[None, None, str]:
        """The longest run of letters, digits and `allowed`, at least one."""
        read = ""
        while len(read) <= MAX_NAME:
            char = yield from self.peek()
            if not (char in allowed or (char.isascii() and char.isalnum())):
                break
            read += yield from self.take()
        if not 1 <= len(read) <= MAX_NAME:
            raise NoCallError
        return read

    def run_until(self, ends: Collection[str]) -> Generator[None, None, str]:
        """The short text before the next of the characters `ends`, at least one character."""
        read = ""
        while (yield from self.peek()) not in ends:
            read += yield from self.take()
            if len(read) > MAX_NAME:
                raise NoCallError
        if not read:
            raise NoCallError
        return read

    def call(self, name: str, call_id: str | None = None) -> Reading:
        """The next JSON object is the arguments of a call of `name`."""
        if (yield from self.peek()) != "{":
            raise NoCallError
        self.begin(name, call_id)
        yield from self.json_arguments()

    def json_string(self) -> Generator[None, None, str]:
        """What a short JSON string says."""
        text = yield from self.json_value(max_length=MAX_NAME)
        if not text.startswith('"'):
            raise NoCallError
        return str(json.loads(text))

    def json_value(self, max_length: int | None = None) -> Generator[None, None, str]:
        """The text of the next JSON value, which stays in `raw`."""
        scanner = JsonScanner()
        parts: list[str] = []
        length = 0
        while not scanner.is_complete:
            part = yield from self._scanned(scanner)
            parts.append(part)
            self._raw.append(part)
            length += len(part)
            if max_length is not None and length > max_length:
                raise NoCallError
        return "".join(parts)

    def json_arguments(self) -> Reading:
        """The next JSON value is the begun call's arguments."""
        scanner = JsonScanner()
        while not scanner.is_complete:
            self.say((yield from self._scanned(scanner)))

    def text_until(self, ends: Sequence[str], say: Callable[[str], None]) -> Generator[None, None, str]:
        """Which of `ends`, none a beginning of another, comes first; `say` is told the text before it.

        What `say` was told is accounted for.
        """
        plain = none_of(ends)
        held = ""
        while held not in ends:
            yield from self.more()
            if not held and (run := self.run(plain)):
                say(run)
                continue
            held += yield from self.take()
            while held and not any(end.startswith(held) for end in ends):
                say(held[0])
                held = held[1:]
                self.account(but=held)
        return held

    def whole_text_until(self, ends: Sequence[str]) -> Generator[None, None, str]:
        """The text before whichever of `ends` comes first; it and the end stay in `raw`."""
        read: list[str] = []
        while True:
            read.append((yield from self.take()))
            for end in ends:
                if read[-1] == end[-1] and "".join(read[-len(end) :]) == end:
                    return "".join(read[: -len(end)])

    def _scanned(self, scanner: JsonScanner) -> Generator[None, None, str]:
        """What `scanner` takes of what is there. NoCallError once it is broken."""
        yield from self.more()
        if scanner.is_broken:
            raise NoCallError
        taken = self.rest[: scanner.feed(self.rest)]
        self.skip(len(taken))
        return taken
