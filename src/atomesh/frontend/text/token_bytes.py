"""The bytes that each token stands for, so that text can be put together from any cut of the tokens."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from atomesh.errors import ModelFileError

SPACE_MARK = "▁"  # SentencePiece writes a space as U+2581
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

SpellsToken = Callable[[str], bytes]


def byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(256 + index): byte for index, byte in enumerate(others)}
    return alphabet


def byte_level_speller() -> SpellsToken:
    alphabet = byte_alphabet()

    def spell(token: str) -> bytes:
        try:
            return bytes([alphabet[char] for char in token])
        except KeyError:
            return token.encode()

    return spell


def sentencepiece_speller(*, byte_fallback: bool) -> SpellsToken:
    def spell(token: str) -> bytes:
        match = _BYTE_TOKEN.fullmatch(token) if byte_fallback else None
        return bytes([int(match[1], 16)]) if match else token.replace(SPACE_MARK, " ").encode()

    return spell


def speller_for(decoder: Mapping[str, Any] | None) -> tuple[SpellsToken, SpellsToken]:
    """How the `decoder` of a tokenizer.json spells a token of the model, and one that was added to it.

    Raises ModelFileError for a kind whose tokens have no bytes of their own.
    """
    steps = _steps(decoder)
    kinds = [str(step.get("type")) for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level_speller(), str.encode
    if kinds == ["Metaspace"]:
        return (sentencepiece_speller(byte_fallback=False),) * 2
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return (sentencepiece_speller(byte_fallback="ByteFallback" in kinds),) * 2
    raise ModelFileError(
        f"the tokenizer's decoder is {' + '.join(kinds) or 'missing'}; supported are ByteLevel and the kinds "
        "of SentencePiece (Replace, ByteFallback, Fuse, Strip, Metaspace): convert the tokenizer"
    )


def strips_leading_space(decoder: Mapping[str, Any] | None) -> bool:
    """Whether a whole text loses the one space that the tokenizer put before its first word."""
    for step in _steps(decoder):
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start") == 1:
            return True
        if step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return True
    return False


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if not decoder:
        return []
    if decoder.get("type") == "Sequence":
        return [step for step in decoder.get("decoders", []) if isinstance(step, dict)]
    return [decoder]
