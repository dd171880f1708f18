"""A GGUF file's vocabulary as a tokenizer.json: byte-level BPE ("gpt2") and SentencePiece ("llama")."""

from collections.abc import Mapping, Sequence
from typing import Any

from atomesh.errors import ModelFileError
from atomesh.frontend.text.gguf_pretokenizers import BYTE_PAIR_STYLES
from atomesh.frontend.text.token_bytes import SPACE_MARK
from atomesh.frontend.text.tokenizer_definition import MAX_TOKEN_ID, TokenizerDefinition

_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_NAMED_TOKEN_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_MAX_PIECE_CHARS = 512
_BYTES_AND_FUSE = ({"type": "ByteFallback"}, {"type": "Fuse"})


def gguf_tokenizer_definition(metadata: Mapping[str, object]) -> TokenizerDefinition:
    """Raises ModelFileError naming the key for a vocabulary that is damaged or of a kind we do not know."""
    vocabulary = _Vocabulary(metadata)
    kind = metadata.get(_PREFIX + "model")
    if kind == "gpt2":
        spec = _byte_pair_spec(vocabulary)
    elif kind == "llama":
        spec = _sentencepiece_spec(vocabulary)
    else:
        raise ModelFileError(
            f"{_PREFIX}model is {kind!r}; supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece): "
            "use a file of such a model, or its Hugging Face directory"
        )
    ends = (vocabulary.token_id("eos_token_id"), vocabulary.token_id("eot_token_id"))
    return TokenizerDefinition(
        spec=spec,
        bos_token_id=vocabulary.token_id("bos_token_id"),
        eos_token_ids=tuple(token_id for token_id in ends if token_id is not None),
        named_tokens=vocabulary.named_tokens(),
    )


def gguf_named_tokens(metadata: Mapping[str, object]) -> dict[str, str]:
    """The text of "bos_token" and its like."""
    return _Vocabulary(metadata).named_tokens()


class _Vocabulary:
    """The `tokenizer.ggml.*` keys, each checked when it is read."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.architecture = str(metadata.get("general.architecture", ""))
        self.tokens: list[str] = self._list("tokens", str)
        if not 0 < len(self.tokens) <= MAX_TOKEN_ID:
            raise ModelFileError(
                f"{_PREFIX}tokens has {len(self.tokens)} entries; it must have 1 to {MAX_TOKEN_ID}"
            )
        self.types: list[int] = self._list("token_type", int) or [_NORMAL] * len(self.tokens)
        self._check_length("token_type", self.types)

    def scores(self) -> list[float]:
        scores = [float(score) for score in self._list("scores", (int, float))]
        self._check_length("scores", scores)
        return scores

    def merges(self) -> list[list[str]]:
        merges = [merge.split(" ") for merge in self._list("merges", str)]
        for merge in merges:
            if len(merge) != 2 or not all(merge):
                raise ModelFileError(
                    f"{_PREFIX}merges has the entry {' '.join(merge)[:64]!r}; it must be two words"
                )
        return merges

    def pre(self) -> str:
        return str(self._metadata.get(_PREFIX + "pre", "default"))

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(_PREFIX + key, default)
        if not isinstance(value, bool):
            raise ModelFileError(f"{_PREFIX}{key} is {value!r}; it must be true or false")
        return value

    def token_id(self, key: str) -> int | None:
        value = self._metadata.get(_PREFIX + key)
        if value is None:
            return None
        if not (isinstance(value, int) and 0 <= value < len(self.tokens)):
            raise ModelFileError(f"{_PREFIX}{key} is {value!r}; it must lie in [0, {len(self.tokens) - 1}]")
        return value

    def named_tokens(self) -> dict[str, str]:
        ids = {name: self.token_id(key) for name, key in _NAMED_TOKEN_KEYS.items()}
        return {name: self.tokens[token_id] for name, token_id in ids.items() if token_id is not None}

    def of_type(self, *types: int) -> list[int]:
        return [token_id for token_id, kind in enumerate(self.types) if kind in types]

    def _list(self, key: str, kind: type | tuple[type, ...]) -> list[Any]:
        value = self._metadata.get(_PREFIX + key, [])
        if not isinstance(value, list) or not all(isinstance(entry, kind) for entry in value):
            raise ModelFileError(f"{_PREFIX}{key} is not a list of the right kind: the file is damaged")
        return value

    def _check_length(self, key: str, values: Sequence[object]) -> None:
        if len(values) != len(self.tokens):
            raise ModelFileError(
                f"{_PREFIX}{key} has {len(values)} entries; {_PREFIX}tokens has {len(self.tokens)}"
            )


def _byte_pair_spec(vocabulary: _Vocabulary) -> dict[str, Any]:
    style = BYTE_PAIR_STYLES.get(vocabulary.pre())
    if style is None:
        raise ModelFileError(
            f"{_PREFIX}pre is {vocabulary.pre()!r}; supported are {', '.join(sorted(BYTE_PAIR_STYLES))}: "
            "use the model's Hugging Face directory"
        )
    return {
        "version": "1.0",
        "added_tokens": _added_tokens(vocabulary, vocabulary.tokens),
        "normalizer": style.normalizer,
        "pre_tokenizer": style.pre_tokenizer,
        "post_processor": _bos_and_eos(vocabulary, adds_bos=style.adds_bos),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(vocabulary.tokens)},
            "merges": vocabulary.merges(),
            "ignore_merges": style.ignore_merges,
        },
    }


def _sentencepiece_spec(vocabulary: _Vocabulary) -> dict[str, Any]:
    tokens = [_respell_spaces(token) for token in vocabulary.tokens]
    unknown = vocabulary.of_type(_UNKNOWN)
    prefixed = vocabulary.flag("add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    prepend = [{"type": "Prepend", "prepend": SPACE_MARK}] if prefixed else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    unmark = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
    return {
        "version": "1.0",
        "added_tokens": _added_tokens(vocabulary, tokens),
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, spaces]},
        "pre_tokenizer": None,
        "post_processor": _bos_and_eos(vocabulary, adds_bos=True),
        "decoder": {
            "type": "Sequence",
            "decoders": [unmark, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": vocabulary.merges() or _implied_merges(vocabulary, tokens),
            "unk_token": tokens[unknown[0]] if unknown else None,
            "fuse_unk": True,
            "byte_fallback": bool(vocabulary.of_type(_BYTE)),
        },
    }


def _respell_spaces(token: str) -> str:
    """Some files hold Gemma's runs of spaces as they are, and not as SentencePiece marks them."""
    return SPACE_MARK * len(token) if token and not token.strip(" ") else token


def _implied_merges(vocabulary: _Vocabulary, tokens: Sequence[str]) -> list[list[str]]:
    """The pairs that SentencePiece would join, best first: by what they make, its score, for Gemma its id."""
    mergeable = {tokens[i]: i for i in vocabulary.of_type(_NORMAL, _USER_DEFINED, _UNUSED)}
    by_id = vocabulary.architecture.startswith("gemma")
    scores = [-float(i) for i in range(len(tokens))] if by_id else vocabulary.scores()
    ranked: list[tuple[float, list[str]]] = []
    for token, token_id in mergeable.items():
        if len(token) > _MAX_PIECE_CHARS:
            raise ModelFileError(
                f"token {token_id} has {len(token)} characters; the limit is {_MAX_PIECE_CHARS}"
            )
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [(left, right) for left, right in cuts if left in mergeable and right in mergeable]
        pairs.sort(key=lambda pair: (mergeable[pair[0]], mergeable[pair[1]]))
        ranked += [(scores[token_id], [left, right]) for left, right in pairs]
    ranked.sort(key=lambda entry: -entry[0])
    return [pair for _, pair in ranked]


def _added_tokens(vocabulary: _Vocabulary, tokens: Sequence[str]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    special = {*vocabulary.of_type(_CONTROL), *vocabulary.of_type(_UNKNOWN)}
    return [
        {"id": token_id, "content": tokens[token_id], "special": token_id in special, **flags}
        for token_id in vocabulary.of_type(_CONTROL, _USER_DEFINED, _UNKNOWN)
        if tokens[token_id]
    ]


def _bos_and_eos(vocabulary: _Vocabulary, *, adds_bos: bool) -> dict[str, Any] | None:
    bos, eos = vocabulary.token_id("bos_token_id"), vocabulary.token_id("eos_token_id")
    before = [bos] if bos is not None and vocabulary.flag("add_bos_token", adds_bos) else []
    after = [eos] if eos is not None and vocabulary.flag("add_eos_token", False) else []
    if not before and not after:
        return None
    names = {token_id: vocabulary.tokens[token_id] for token_id in (*before, *after)}

    def special(token_id: int, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": names[token_id], "type_id": segment}}

    def around(segment: str, index: int) -> list[dict[str, Any]]:
        text = {"Sequence": {"id": segment, "type_id": index}}
        return [*(special(i, index) for i in before), text, *(special(i, index) for i in after)]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in names.items()},
    }
