"""How byte-level BPE vocabularies in GGUF files cut text before merging, by the file's `tokenizer.ggml.pre`.

The names are llama.cpp's; the expressions and switches are those of the original models' tokenizer.json.
"""

from dataclasses import dataclass
from typing import Any

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    isolated = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return _sequence(isolated, _byte_level(use_regex=False))


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_DIGITS = _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))


@dataclass(frozen=True, slots=True)
class BytePairStyle:
    """`adds_bos` is for files that do not say; `ignore_merges` takes a word that is a token whole."""

    pre_tokenizer: dict[str, Any]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


_GPT2_STYLE = BytePairStyle(_byte_level(use_regex=True))
_DIGITS_STYLE = BytePairStyle(_DIGITS)
_LLAMA3_STYLE = BytePairStyle(_split(_LLAMA3), ignore_merges=True, adds_bos=True)
_QWEN2_STYLE = BytePairStyle(_split(_QWEN2), normalizer={"type": "NFC"})
_GPT4O_STYLE = BytePairStyle(_split(_GPT4O))

BYTE_PAIR_STYLES: dict[str, BytePairStyle] = {
    "default": _GPT2_STYLE,
    "gpt-2": _GPT2_STYLE,
    "olmo": _GPT2_STYLE,
    "smollm": _DIGITS_STYLE,
    "starcoder": _DIGITS_STYLE,
    "refact": _DIGITS_STYLE,
    "command-r": _DIGITS_STYLE,
    "llama3": _LLAMA3_STYLE,
    "llama-v3": _LLAMA3_STYLE,
    "llama-bpe": _LLAMA3_STYLE,
    "falcon3": _LLAMA3_STYLE,
    "pixtral": _LLAMA3_STYLE,
    "lfm2": _LLAMA3_STYLE,
    "dbrx": BytePairStyle(_split(_LLAMA3)),
    "smaug-bpe": BytePairStyle(_split(_LLAMA3)),
    "qwen2": _QWEN2_STYLE,
    "megrez": _QWEN2_STYLE,
    "deepseek-r1-qwen": BytePairStyle(_split(_QWEN2)),
    "tekken": BytePairStyle(_split(_TEKKEN), ignore_merges=True, adds_bos=True),
    "gpt-4o": _GPT4O_STYLE,
    "llama4": _GPT4O_STYLE,
}
