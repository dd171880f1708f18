"""The two tiny tokenizers, each as files of a Hugging Face directory and as metadata of a GGUF file."""

from dataclasses import dataclass
from typing import Literal

import orjson
from tokenizers import Tokenizer

from atomesh.testing.tiny_gguf import GgufVocabulary
from atomesh.testing.tiny_sentencepiece import (
    BYTE_PIECES,
    SPECIAL_PIECES,
    sentencepiece_config,
    tiny_sentencepiece,
)
from atomesh.testing.tiny_tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS, tiny_tokenizer, tokenizer_config

TokenizerKind = Literal["bytes", "sentencepiece"]

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


@dataclass(frozen=True, slots=True)
class TinyVocabulary:
    tokenizer: Tokenizer
    config: dict[str, object]
    gguf: GgufVocabulary


def tiny_vocabulary(kind: TokenizerKind) -> TinyVocabulary:
    """Byte-level BPE (`bytes`, with a chat template) or SentencePiece's BPE with byte fallback."""
    return _bytes() if kind == "bytes" else _sentencepiece()


def _bytes() -> TinyVocabulary:
    tokenizer = tiny_tokenizer()
    tokens = _tokens(tokenizer)
    types = [_CONTROL if token in SPECIAL_TOKENS else _NORMAL for token in tokens]
    merges = [" ".join(pair) for pair in orjson.loads(tokenizer.to_str())["model"]["merges"]]
    gguf = GgufVocabulary("gpt2", "smollm", tokens, types, merges=merges, chat_template=CHAT_TEMPLATE)
    return TinyVocabulary(tokenizer, tokenizer_config(), gguf)


def _sentencepiece() -> TinyVocabulary:
    tokenizer = tiny_sentencepiece()
    tokens = _tokens(tokenizer)
    plain = len(SPECIAL_PIECES) + len(BYTE_PIECES)
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * len(BYTE_PIECES), *[_NORMAL] * (len(tokens) - plain)]
    scores = [0.0] * plain + [-float(rank) for rank in range(len(tokens) - plain)]
    gguf = GgufVocabulary("llama", "default", tokens, types, scores=scores)
    return TinyVocabulary(tokenizer, sentencepiece_config(), gguf)


def _tokens(tokenizer: Tokenizer) -> list[str]:
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)
