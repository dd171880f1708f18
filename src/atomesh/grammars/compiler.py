"""From a grammar's text to what says, token by token, how an answer may go on (llguidance)."""

import re
from collections.abc import Sequence
from functools import cached_property

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from atomesh.errors import InvalidRequestError
from atomesh.grammars.json_schema.faults import name_keyword
from atomesh.grammars.limits import parser_limits
from atomesh.grammars.size import check_size
from atomesh.grammars.source import grammar_text
from atomesh.grammars.vocabulary import Vocabulary
from atomesh.protocol.grammar import GrammarSpec

_MARK = b"\xff"  # begins a special token's name, for llguidance
_END = b"<|end of grammar|>"  # of a model that has no token for it
_MAX_WORDS = 400
_KEYWORDS = re.compile(r"Unimplemented keys: \[(?P<names>.*)\]")
_TOO_LARGE = re.compile(r"(?i)too (big|large|complex|many|deep)|fuel|limit|max is|exceed|overflow")
_EMPTY = "NoExtension"  # and NoExtensionBias: nothing follows, not even the end


class GrammarCompiler:
    """Of one model's grammars. Safe to use from several threads at once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Takes about a second for 100,000 tokens."""
        wrapped = _Wrapped(vocabulary)
        self.num_ids = len(wrapped.tokens)
        self._tokenizer = LLTokenizer(TokenizerWrapper(wrapped), eos_token=wrapped.eos_ids)

    def compile(self, spec: GrammarSpec) -> LLMatcher:
        """At the grammar's beginning. Raises InvalidRequestError, which names what is not supported."""
        check_size(spec)
        try:
            text = grammar_text(spec)
        except InvalidRequestError:
            raise
        except ValueError as error:
            raise InvalidRequestError(f"it is not valid: {_short(str(error))}") from None
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=parser_limits())
        if matcher.is_error():
            found = matcher.get_error()
            raise InvalidRequestError(
                explain_fault(name_keyword(found) if spec.kind == "json_schema" else found)
            )
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        if probe.is_error():
            raise InvalidRequestError(explain_fault(probe.get_error()))
        return matcher


def explain_fault(found: str) -> str:
    """llguidance's words in ours: what is wrong, and what to do."""
    if keywords := _KEYWORDS.search(found):
        names = keywords["names"].replace('"', "'")
        return f"the schema's keywords {names} are not supported; remove them"
    if found.startswith(_EMPTY):
        return "no text satisfies it; loosen it"
    if _TOO_LARGE.search(found):
        return f"it is too large for the limits of one grammar ({_short(found)}); simplify it"
    return f"it is not valid, or not supported: {_short(found)}"


def _short(words: str) -> str:
    flat = " ".join(words.replace("<non-verbose/>", "").split())
    return flat if len(flat) <= _MAX_WORDS else f"{flat[:_MAX_WORDS]}…"


class _Wrapped:
    """The vocabulary as llguidance's TokenizerWrapper reads it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode
        special = set(vocabulary.special_ids)
        self.tokens: list[bytes] = [
            b"" if token[:1] == _MARK and token_id not in special else token
            for token_id, token in enumerate(vocabulary.tokens)
        ]
        self.eos_ids = list(vocabulary.eos_ids)
        if not self.eos_ids:
            self.eos_ids = [len(self.tokens)]
            self.tokens.append(_END)
        self.eos_token_id = self.eos_ids[0]
        self.special_token_ids = sorted(special.union(self.eos_ids))

    def __call__(self, text: str) -> Sequence[int]:
        return list(self._encode(text)) or self._spell(text.encode())

    def _spell(self, text: bytes) -> Sequence[int]:
        """By the longest token that fits, time and again; no id where one is missing."""
        ids, start = [], 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                return []
            ids.append(self._ids[text[start:end]])
            start = end
        return ids

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {token: i for i, token in enumerate(self.tokens) if token and i not in special}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)
