"""Text to token ids and back, the same for a tokenizer.json and for a GGUF file's vocabulary."""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import tokenizers

from atomesh.errors import InvalidRequestError, ModelFileError
from atomesh.frontend.text.gguf_tokenizer import gguf_tokenizer_definition
from atomesh.frontend.text.hf_tokenizer import hf_tokenizer_definition
from atomesh.frontend.text.token_bytes import speller_for, strips_leading_space
from atomesh.frontend.text.tokenizer_definition import (
    MAX_TOKEN_BYTES,
    TokenizerDefinition,
    check_token_id,
    rename_control_tokens,
)

if TYPE_CHECKING:
    from atomesh.model_files.checkpoint import Checkpoint

_SURROGATE = re.compile("[\ud800-\udfff]")


def load_tokenizer(checkpoint: "Checkpoint") -> "Tokenizer":
    """The tokenizer of a Hugging Face directory or GGUF file. ModelFileError if it has none we can use."""
    if "tokenizer.ggml.model" in checkpoint.metadata:
        definition = gguf_tokenizer_definition(checkpoint.metadata)
    else:
        definition = hf_tokenizer_definition(checkpoint)
    return Tokenizer(definition, extra_eos_token_ids=checkpoint.config.eos_token_ids)


class Tokenizer:
    """Immutable and safe to use from several threads at once.

    It holds the vocabulary twice. In the second, `sealed` one the special tokens have secret names of this
    process, so that no text from outside can become one, while everything else is as in the first.
    """

    def __init__(self, definition: TokenizerDefinition, *, extra_eos_token_ids: Iterable[int] = ()) -> None:
        self._open = _build(definition.spec)
        self.special_tokens: Mapping[str, int] = _special_tokens(self._open)
        self.named_tokens = definition.named_tokens
        self.bos_token_id = definition.bos_token_id
        self.eos_token_ids = tuple(dict.fromkeys((*extra_eos_token_ids, *definition.eos_token_ids)))
        self._special_ids = frozenset(self.special_tokens.values())
        self._secret_names = _secret_names(self.special_tokens)
        self._sealed = _build_sealed(definition.spec, self.special_tokens, self._secret_names)
        longest_first = sorted(self.special_tokens, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._bytes = _bytes_by_id(self._open, definition)
        self.puts_space_first = strips_leading_space(definition.spec.get("decoder"))

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id; a model's own vocabulary may be padded beyond it."""
        return len(self._bytes)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`; with `parse_special` False, special-token text in it is plain text.

        Raises InvalidRequestError when `text` cannot be written as UTF-8 (a lone surrogate).
        """
        tokenizer = self._open if parse_special else self._sealed
        return _encode(tokenizer, text, add_special_tokens)

    def encode_masked(self, text: str, unmask: Mapping[int, str]) -> list[int]:
        """Token ids of `text`; special tokens are read in it first, then characters restored by `unmask`.

        `unmask` is a table for `str.translate`. What a masked character is part of never becomes a special
        token.
        """
        if not any(chr(mask) in text for mask in unmask):
            return self.encode(text, add_special_tokens=False)
        sealed = self._control_pattern.sub(lambda match: self._secret_names[match[0]], text)
        return _encode(self._sealed, sealed.translate(dict(unmask)), add_special_tokens=False)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The whole text of `ids`; bytes that are not UTF-8 become U+FFFD, unknown ids nothing."""
        skipped = self._special_ids if skip_special_tokens else frozenset()
        text = b"".join(self.token_bytes(i) for i in ids if i not in skipped).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.puts_space_first else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text; none for an id that stands for nothing."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def token_id(self, token: str) -> int | None:
        """Of the token with just this text in the vocabulary, special or not."""
        token_id: int | None = self._open.token_to_id(token)
        return token_id

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids


def _encode(tokenizer: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    except TypeError as error:  # what the library makes of text that has no UTF-8
        surrogate = _SURROGATE.search(text)
        raise InvalidRequestError(
            f"the text has a lone surrogate at character {surrogate.start() if surrogate else 0}; "
            "send valid Unicode"
        ) from error
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise InvalidRequestError(
            "the text takes the tokenizer too many steps; send less of what repeats in it"
        ) from error
    return ids


def _is_panic(error: BaseException) -> bool:
    """Of the library's Rust code; pyo3's exception is no Exception, and no module exports it."""
    return type(error).__name__ == "PanicException"


def _build(spec: Mapping[str, object]) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))
    except BaseException as error:
        if not (isinstance(error, Exception) or _is_panic(error)):
            raise
        raise ModelFileError(f"the tokenizer's definition is not valid: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _build_sealed(
    spec: Mapping[str, object], special_tokens: Mapping[str, int], names: Mapping[str, str]
) -> tokenizers.Tokenizer:
    sealed = _build(rename_control_tokens(spec, names))
    for token, token_id in special_tokens.items():
        if sealed.token_to_id(names[token]) != token_id or sealed.token_to_id(token) is not None:
            raise ModelFileError(
                f"special token {token[:64]!r} has no id of its own: the tokenizer's vocabulary is damaged"
            )
    return sealed


def _special_tokens(tokenizer: tokenizers.Tokenizer) -> dict[str, int]:
    added = tokenizer.get_added_tokens_decoder()
    return {token.content: token_id for token_id, token in sorted(added.items()) if token.special}


def _secret_names(special_tokens: Iterable[str]) -> dict[str, str]:
    nonce = secrets.token_hex(16)
    return {token: f"\ue000{nonce}.{index}\ue001" for index, token in enumerate(special_tokens)}


def _bytes_by_id(tokenizer: tokenizers.Tokenizer, definition: TokenizerDefinition) -> list[bytes]:
    spell, spell_added = speller_for(definition.spec.get("decoder"))
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    for token, token_id in vocab.items():
        check_token_id(token, token_id)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, token_id in vocab.items():
        table[token_id] = spell(token)
    for token_id, added in tokenizer.get_added_tokens_decoder().items():
        table[token_id] = added.content.encode() if added.special else spell_added(added.content)
    longest = max(map(len, table), default=0)
    if longest > MAX_TOKEN_BYTES:
        raise ModelFileError(
            f"a token of the vocabulary has {longest} bytes; the limit is {MAX_TOKEN_BYTES}: "
            "use the tokenizer published with the model"
        )
    return table
