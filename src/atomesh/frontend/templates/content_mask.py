"""Keeping what users write apart from what a chat template writes: content never becomes a control token.

Every special token has a key: one of its characters. In users' text each key character is replaced, one for
one, by a mask that valid text cannot contain (a lone surrogate). However a template cuts and joins the text,
a special token in its output has the key, at least, from the template itself. The masks are taken off after
the special tokens were read.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from atomesh.errors import InvalidRequestError, ModelFileError

_FIRST_MASK, _LAST_MASK = 0xDC00, 0xDFFE
_MAX_DEPTH = 100
_MARKUP = re.compile(r"</?\w+>")


class ContentMask:
    """`unmask` is the table for `str.translate` that restores masked text."""

    def __init__(self, special_tokens: Iterable[str], template: str) -> None:
        """`template` is the source: markup that it names itself, such as </think>, stays readable to it."""
        special = frozenset(special_tokens)
        keys = sorted({_key(token) for token in special})
        if len(keys) > _LAST_MASK - _FIRST_MASK:
            raise ModelFileError(f"the tokenizer has {len(special)} special tokens with nothing in common")
        self.unmask: Mapping[int, str] = dict(enumerate(keys, start=_FIRST_MASK))
        self._masks = {key: chr(code) for code, key in self.unmask.items()}
        readable = sorted(set(_MARKUP.findall(template)) - special)
        exempt = "|".join(map(re.escape, readable)) or "(?!)"
        self._pattern = re.compile(f"(?!{exempt})[{''.join(map(re.escape, keys))}\ud800-\udfff]")

    def apply(self, value: Any, *, depth: int = 0) -> Any:
        """`value`, JSON-like, with all its text masked. InvalidRequestError for text that is not Unicode."""
        if depth > _MAX_DEPTH:
            raise InvalidRequestError(
                f"the messages are nested deeper than {_MAX_DEPTH} levels; flatten them", param="messages"
            )
        if isinstance(value, str):
            return self._pattern.sub(self._mask, value)
        if isinstance(value, Mapping):
            return {self.apply(key): self.apply(item, depth=depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.apply(item, depth=depth + 1) for item in value]
        return value

    def _mask(self, match: re.Match[str]) -> str:
        mask = self._masks.get(match[0])
        if mask is None:
            raise InvalidRequestError(
                f"the messages hold a lone surrogate, U+{ord(match[0]):04X}; send valid Unicode",
                param="messages",
            )
        return mask


def _key(token: str) -> str:
    """The character of `token` that users' text and templates' comparisons need least."""
    return min(token, key=_need)


def _need(character: str) -> int:
    if character.isalnum():
        return 3
    if character.isspace():
        return 4
    return {"<": 1, ">": 2, "/": 2, "_": 2, "-": 2, ".": 2, ":": 2, "▁": 2}.get(character, 0)
