"""JSON as it goes to a client: compact UTF-8, with the characters escaped that some take for line ends."""

from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()

# In UTF-8 each sequence is that character and nothing else, and in JSON it can only stand inside a string.
_LINE_ENDS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


def encode_json(value: Any) -> bytes:
    data = _encoder.encode(value)
    if data.isascii():
        return data
    for raw, escaped in _LINE_ENDS:
        data = data.replace(raw, escaped)
    return data
