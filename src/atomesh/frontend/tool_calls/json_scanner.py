"""Reads one JSON value as it comes, and says where it ends or stops being JSON (RFC 8259, strictly)."""

import re
from enum import Enum, auto

MAX_DEPTH = 128
_SPACE = frozenset(" \t\n\r")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}
_DIGITS = "0123456789"


class _At(Enum):
    """What may come next."""

    VALUE = auto()
    FIRST_ITEM = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    AFTER_VALUE = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    WORD = auto()
    NUMBER = auto()


# A number's way, by what it has come to: character to what that makes of it. In _NUMBER_ENDS it may end.
_NUMBER: dict[str, dict[str, str]] = {
    "-": {"0": "0", **dict.fromkeys("123456789", "int")},
    "0": {".": ".", "e": "e", "E": "e"},
    "int": {".": ".", "e": "e", "E": "e", **dict.fromkeys(_DIGITS, "int")},
    ".": dict.fromkeys(_DIGITS, "fraction"),
    "fraction": {"e": "e", "E": "e", **dict.fromkeys(_DIGITS, "fraction")},
    "e": {"+": "sign", "-": "sign", **dict.fromkeys(_DIGITS, "exponent")},
    "sign": dict.fromkeys(_DIGITS, "exponent"),
    "exponent": dict.fromkeys(_DIGITS, "exponent"),
}
_NUMBER_STARTS = {"-": "-", "0": "0", **dict.fromkeys("123456789", "int")}
_NUMBER_ENDS = ("0", "int", "fraction", "exponent")


class JsonScanner:
    """Nested at most MAX_DEPTH deep. A number alone is complete when something else follows."""

    def __init__(self) -> None:
        self.is_complete = False
        self.is_broken = False
        self._at = _At.VALUE
        self._open: list[str] = []
        self._is_key = False
        self._rest = ""  # of a word
        self._hex_left = 0
        self._number = ""
        self._steps = {
            _At.VALUE: self._value,
            _At.FIRST_ITEM: self._first_item,
            _At.FIRST_KEY: self._first_key,
            _At.KEY: self._key,
            _At.COLON: self._colon,
            _At.AFTER_VALUE: self._after_value,
            _At.STRING: self._string,
            _At.ESCAPE: self._escape,
            _At.HEX: self._hex,
            _At.WORD: self._word,
            _At.NUMBER: self._in_number,
        }

    def feed(self, text: str) -> int:
        """How many characters of `text` belong to the value; fewer than all when it is complete or broken."""
        place = 0
        while place < len(text) and not self.is_complete:
            if self._at is _At.STRING:
                run = _PLAIN.match(text, place)
                place = run.end() if run else place
                if place == len(text):
                    break
            if not self._steps[self._at](text[place]):
                self.is_broken = not self.is_complete
                return place
            place += 1
        return place

    def _value(self, char: str) -> bool:
        if char in _SPACE:
            return True
        if char in "{[":
            return self._nest(char)
        if char == '"':
            self._at, self._is_key = _At.STRING, False
        elif char in _WORDS:
            self._at, self._rest = _At.WORD, _WORDS[char]
        elif char in _NUMBER_STARTS:
            self._at, self._number = _At.NUMBER, _NUMBER_STARTS[char]
        else:
            return False
        return True

    def _nest(self, char: str) -> bool:
        self._open.append(char)
        self._at = _At.FIRST_KEY if char == "{" else _At.FIRST_ITEM
        return len(self._open) <= MAX_DEPTH

    def _first_item(self, char: str) -> bool:
        return self._close() if char == "]" else self._value(char)

    def _first_key(self, char: str) -> bool:
        return self._close() if char == "}" else self._key(char)

    def _key(self, char: str) -> bool:
        if char == '"':
            self._at, self._is_key = _At.STRING, True
            return True
        return char in _SPACE

    def _colon(self, char: str) -> bool:
        if char == ":":
            self._at = _At.VALUE
            return True
        return char in _SPACE

    def _after_value(self, char: str) -> bool:
        if char == ",":
            self._at = _At.KEY if self._open[-1] == "{" else _At.VALUE
            return True
        if char == ("}" if self._open[-1] == "{" else "]"):
            return self._close()
        return char in _SPACE

    def _close(self) -> bool:
        self._open.pop()
        return self._end_value()

    def _end_value(self) -> bool:
        self._at = _At.AFTER_VALUE
        self.is_complete = not self._open
        return True

    def _string(self, char: str) -> bool:
        if char == "\\":
            self._at = _At.ESCAPE
            return True
        if char != '"':
            return False
        if self._is_key:
            self._at = _At.COLON
            return True
        return self._end_value()

    def _escape(self, char: str) -> bool:
        if char == "u":
            self._at, self._hex_left = _At.HEX, 4
            return True
        self._at = _At.STRING
        return char in _ESCAPES

    def _hex(self, char: str) -> bool:
        self._hex_left -= 1
        if self._hex_left == 0:
            self._at = _At.STRING
        return char in _HEX

    def _word(self, char: str) -> bool:
        if char != self._rest[0]:
            return False
        self._rest = self._rest[1:]
        return True if self._rest else self._end_value()

    def _in_number(self, char: str) -> bool:
        following = _NUMBER[self._number].get(char)
        if following is not None:
            self._number = following
            return True
        if self._number not in _NUMBER_ENDS:
            return False
        self._end_value()
        return False if self.is_complete else self._after_value(char)
