"""A short way from an answer that was cut to a whole one, as its schema's grammar has it."""

import json
from collections.abc import Mapping
from typing import Any

from atomesh.grammars.compiler import GrammarCompiler
from atomesh.grammars.vocabulary import vocabulary_of
from atomesh.protocol.grammar import GrammarSpec
from atomesh.testing.byte_tokenizer import END, ByteTokenizer

MOST_BYTES = 4_000
_FIRST = b'"}]0:, ntf1e-'


class AnswerFinisher:
    def __init__(self) -> None:
        tokenizer = ByteTokenizer()
        self._compiler = GrammarCompiler(vocabulary_of(tokenizer, tokenizer.vocab_size, (END,)))

    def finish(self, schema: Mapping[str, Any], begun: str) -> str | None:
        """A whole answer that begins so; None if none is near. Raises ValueError where none can begin so."""
        spec = GrammarSpec(kind="json_schema", source=json.dumps(schema))
        matcher = self._compiler.compile(spec)
        text = bytearray(begun.encode())
        if matcher.try_consume_tokens(list(text)) < len(text):
            raise ValueError(f"{begun!r} begins no answer")
        for _ in range(MOST_BYTES):
            if matcher.is_accepting():
                return text.decode()
            allowed = int.from_bytes(matcher.compute_bitmask(), "little") & (1 << 256) - 1
            following = next((byte for byte in _FIRST if allowed >> byte & 1), allowed.bit_length() - 1)
            matcher.consume_token(following)
            text.append(following)
        return None
