"""The models as Anthropic lists them, for whoever sends `anthropic-version`."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from atomesh.frontend.served_model import ServedModel
from atomesh.protocol.worker import ModelDescription


def wants_anthropic(headers: Mapping[str, str]) -> bool:
    return "anthropic-version" in headers


def anthropic_entry(name: str, model: ServedModel, description: ModelDescription) -> dict[str, Any]:
    """`name` may be an alias."""
    return {
        "type": "model",
        "id": name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": description.max_model_len or None,
        "max_tokens": description.max_model_len or None,
    }


def anthropic_list(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All on one page."""
    return {
        "data": entries,
        "has_more": False,
        "first_id": entries[0]["id"] if entries else None,
        "last_id": entries[-1]["id"] if entries else None,
    }
