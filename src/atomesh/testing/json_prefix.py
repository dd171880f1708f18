"""Whether a text is JSON, or may become it, as compact as our answers: no space but one after `,` and `:`."""

import re
from dataclasses import dataclass, field

_SPACE_AFTER = {",": ", ", ":": ": "}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][+-]?[0-9]*)?)?")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_STRING_BEGUN = re.compile(
    r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*(?:\\(?:u[0-9a-fA-F]{0,3})?)?'
)
_WORDS = ("true", "false", "null")


class NotJsonError(ValueError):
    """Nothing that follows can make JSON of it."""


@dataclass(slots=True)
class _Reader:
    """`open` are the brackets that are not closed yet; `wants` is what comes next."""

    text: str
    place: int = 0
    open: list[str] = field(default_factory=list)
    wants: str = "value"

    def read(self) -> bool:
        """Whether all of the text is one whole value. Raises NotJsonError."""
        while self.place < len(self.text):
            getattr(self, f"_read_{self.wants}")()
        return self.wants == "end" or (self.wants == "cut number" and not self.open)

    def _read_end(self) -> None:
        raise NotJsonError(f"{self.text[self.place :]!r} follows the end")

    def _read_value(self) -> None:
        first = self.text[self.place]
        if first in "[{":
            self.open.append(first)
            self.place += 1
            self.wants = "first" if first == "[" else "first_name"
        elif first == '"':
            self._take(_STRING, _STRING_BEGUN)
        elif first == "-" or first.isdecimal():
            self._take(_NUMBER, _NUMBER_BEGUN)
        else:
            self._take_word()

    def _read_first(self) -> None:
        if self.text[self.place] == "]":
            self._close("]")
        else:
            self._read_value()

    def _read_first_name(self) -> None:
        if self.text[self.place] == "}":
            self._close("}")
        else:
            self._read_name()

    def _read_name(self) -> None:
        if self.text[self.place] != '"':
            raise NotJsonError(f"{self.text[self.place :][:20]!r} where a name must be")
        self._take(_STRING, _STRING_BEGUN)
        if self.wants != "cut":
            self.wants = "colon"

    def _read_colon(self) -> None:
        self._separate(":", "value")

    def _read_next(self) -> None:
        first = self.text[self.place]
        if first == ",":
            self._separate(",", "value" if self.open[-1] == "[" else "name")
        else:
            self._close(first)

    def _separate(self, mark: str, wants: str) -> None:
        found = self.text[self.place : self.place + 2]
        if not found or not _SPACE_AFTER[mark].startswith(found):
            raise NotJsonError(f"{found!r} where {_SPACE_AFTER[mark]!r} must be")
        self.place += 2
        self.wants = wants

    def _close(self, mark: str) -> None:
        if f"{self.open[-1]}{mark}" not in ("[]", "{}"):
            raise NotJsonError(f"{mark!r} inside {self.open[-1]!r}")
        self.open.pop()
        self.place += 1
        self._end_value()

    def _end_value(self) -> None:
        self.wants = "next" if self.open else "end"

    def _take(self, whole: re.Pattern[str], begun: re.Pattern[str]) -> None:
        rest = self.text[self.place :]
        if begun.fullmatch(rest):
            self.place = len(self.text)
            self.wants = "cut number" if whole.fullmatch(rest) else "cut"
        elif found := whole.match(rest):
            self.place += found.end()
            self._end_value()
        else:
            raise NotJsonError(f"{rest[:40]!r} where a value must be")

    def _take_word(self) -> None:
        rest = self.text[self.place :]
        for word in _WORDS:
            if rest.startswith(word):
                self.place += len(word)
                self._end_value()
                return
            if word.startswith(rest):
                self.place = len(self.text)
                self.wants = "cut"
                return
        raise NotJsonError(f"{rest[:20]!r} where a value must be")


def is_whole_json(text: str) -> bool:
    """False where more must follow. Raises NotJsonError where nothing can help."""
    return _Reader(text).read()
