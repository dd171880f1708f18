"""Server-sent events with names."""

from collections.abc import Mapping
from typing import Any

from atomesh.frontend.http.json_text import encode_json


def event_frame(fields: Mapping[str, Any]) -> bytes:
    """The event is named after its type."""
    return b"event: " + str(fields["type"]).encode() + b"\ndata: " + encode_json(fields) + b"\n\n"
