"""How we speak with a process of ours: frames of an 8-byte length and a JSON document."""

import json
import struct
from collections.abc import Mapping
from typing import Any

FRAME_HEADER = struct.Struct("<Q")


def encode_document(document: Mapping[str, Any]) -> bytes:
    """A whole frame; lone surrogates are allowed, for masks are made of them."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return FRAME_HEADER.pack(len(body)) + body


def decode_document(body: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(body.decode("utf-8", "surrogatepass"))
    return document
