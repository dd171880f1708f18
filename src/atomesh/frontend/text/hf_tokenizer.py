"""A Hugging Face directory's tokenizer.json, completed from tokenizer_config.json as transformers does."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomesh.errors import ModelFileError
from atomesh.frontend.text.tokenizer_definition import (
    MAX_TOKEN_ID,
    TokenizerDefinition,
    added_tokens,
    check_normalizer,
)

if TYPE_CHECKING:
    from atomesh.model_files.checkpoint import Checkpoint

MAX_TOKENIZER_BYTES = 128 * 2**20
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MAX_ID_DIGITS = len(str(MAX_TOKEN_ID))
_ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def hf_tokenizer_definition(checkpoint: "Checkpoint") -> TokenizerDefinition:
    """Raises ModelFileError when there is no tokenizer.json or it cannot be used."""
    path = checkpoint.find("tokenizer.json")
    if path is None:
        raise ModelFileError(_missing(checkpoint))
    config = checkpoint.read_json("tokenizer_config.json") or {}
    spec = _read(path)
    check_normalizer(spec.get("normalizer"))
    tokens = _with_configured_tokens(added_tokens(spec), config)
    named = named_tokens(config, checkpoint.read_json("special_tokens_map.json") or {})
    ids = {entry["content"]: entry["id"] for entry in tokens}
    eos = ids.get(named.get("eos_token", ""))
    return TokenizerDefinition(
        spec={**spec, "added_tokens": tokens},
        bos_token_id=ids.get(named.get("bos_token", "")),
        eos_token_ids=() if eos is None else (eos,),
        named_tokens=named,
    )


def named_tokens(config: Mapping[str, Any], special_tokens_map: Mapping[str, Any]) -> dict[str, str]:
    """The text of "bos_token" and its like; tokenizer_config.json wins over special_tokens_map.json."""
    named: dict[str, str] = {}
    for name in NAMED_TOKENS:
        for source in (config, special_tokens_map):
            value = source.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                named.setdefault(name, text)
    return named


def _missing(checkpoint: "Checkpoint") -> str:
    if checkpoint.find("tokenizer.model") is not None:
        return (
            "the model directory has a tokenizer.model but no tokenizer.json; convert it once, for example "
            "with transformers: AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
        )
    return "the model directory has no tokenizer.json; add the file that was published with the model"


def _read(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > MAX_TOKENIZER_BYTES:
        raise ModelFileError(
            f"tokenizer.json has {size} bytes; the limit is {MAX_TOKENIZER_BYTES}: "
            "use the file published with the model"
        )
    try:
        spec = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"tokenizer.json is not valid JSON ({error}): use the file published with the model"
        ) from error
    if not (isinstance(spec, dict) and isinstance(spec.get("model"), dict)):
        raise ModelFileError("tokenizer.json has no model: use the file published with the model")
    return spec


def _with_configured_tokens(tokens: list[dict[str, Any]], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """With the tokens of `added_tokens_decoder` that the tokenizer.json lacks."""
    decoder = config.get("added_tokens_decoder")
    if not isinstance(decoder, dict):
        return tokens
    merged = {entry["id"]: entry for entry in tokens}
    for key, entry in decoder.items():
        valid = (
            key.isdecimal()
            and len(key) <= _MAX_ID_DIGITS
            and isinstance(entry, dict)
            and isinstance(entry.get("content"), str)
        )
        if not valid or not entry["content"] or int(key) > MAX_TOKEN_ID:
            raise ModelFileError(
                f"added_tokens_decoder[{key[:64]!r}] of tokenizer_config.json is not a token: "
                "use the file published with the model"
            )
        if int(key) not in merged:
            flags = {flag: bool(entry.get(flag, False)) for flag in _ADDED_TOKEN_FLAGS}
            merged[int(key)] = {"id": int(key), "content": entry["content"], **flags}
    return [merged[token_id] for token_id in sorted(merged)]
