"""A tokenizer before it is built: the content of a tokenizer.json, wherever it was read from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atomesh.errors import ModelFileError

MAX_TOKEN_ID = 2**22 - 1
MAX_TOKEN_BYTES = 4096
_MAX_GROWTH = 64


@dataclass(frozen=True, slots=True)
class TokenizerDefinition:
    """`spec` is a parsed tokenizer.json; `named_tokens` maps "bos_token" and its like to the token's text."""

    spec: Mapping[str, Any]
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    named_tokens: Mapping[str, str] = field(default_factory=dict)


def added_tokens(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The added tokens, each with a text and an id within bounds; ModelFileError otherwise."""
    entries = spec.get("added_tokens") or []
    if not isinstance(entries, list):
        raise ModelFileError("added_tokens of the tokenizer is not a list: the tokenizer file is damaged")
    for entry in entries:
        if not (isinstance(entry, dict) and isinstance(entry.get("content"), str) and entry["content"]):
            raise ModelFileError("an entry of added_tokens has no text: the tokenizer file is damaged")
        check_token_id(entry["content"], entry.get("id"))
    return entries


def check_token_id(token: str, token_id: object) -> None:
    if not (isinstance(token_id, int) and 0 <= token_id <= MAX_TOKEN_ID):
        raise ModelFileError(
            f"token {token[:64]!r} has id {token_id!r}; it must lie in [0, {MAX_TOKEN_ID}]: "
            "use the tokenizer published with the model"
        )


def check_normalizer(normalizer: object) -> None:
    """Raises ModelFileError for steps that together could make a text many times as long as it is."""
    growth, steps = 1, [normalizer]
    while steps:
        step = steps.pop()
        if not isinstance(step, dict):
            continue
        added = step.get("content", step.get("prepend", ""))
        growth *= max(len(added) if isinstance(added, str) else 1, 1)
        if growth > _MAX_GROWTH:
            raise ModelFileError(
                f"the tokenizer's normalizer may make a text more than {_MAX_GROWTH} times as long: "
                "use the tokenizer published with the model"
            )
        inner = step.get("normalizers", [])
        steps += inner if isinstance(inner, list) else []


def rename_control_tokens(spec: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """`spec` with each text in `names` replaced by its new name wherever it names a token.

    A tokenizer built from it gives those ids for the new names alone: no text with the old ones leads there.
    """
    model = dict(spec["model"])
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(token, token): token_id for token, token_id in vocab.items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocab]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _mentions(merge, names)]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    tokens = [
        entry | {"content": names.get(entry["content"], entry["content"])} for entry in added_tokens(spec)
    ]
    return {**spec, "model": model, "added_tokens": tokens}


def _mentions(merge: str | list[str], names: Mapping[str, str]) -> bool:
    left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
    return left in names or right in names or left + right in names
