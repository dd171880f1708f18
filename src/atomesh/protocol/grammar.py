"""What an answer's tokens must spell: a language, and where in the answer it begins."""

from typing import Literal

import msgspec

GrammarKind = Literal["json_schema", "regex", "lark"]


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`source` is a JSON schema as text, a regular expression, or a grammar in llguidance's Lark.

    The language begins after the first occurrence of the token ids `begins_after` in the answer, as those
    that end a model's reasoning; empty, with the first token. What comes before is free.
    """

    kind: GrammarKind
    source: str
    begins_after: tuple[int, ...] = ()
