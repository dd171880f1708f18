"""The label on every answer. Nothing is looked up by it: a request's identity is minted apart."""

import re
import secrets
from collections.abc import Iterable

_LABEL = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def mint_request_id() -> bytes:
    return b"req-" + secrets.token_hex(16).encode()


def choose_request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The client's `x-request-id` where it is a sound label, else one of ours."""
    for name, value in headers:
        if name == b"x-request-id" and _LABEL.fullmatch(value):
            return value
    return mint_request_id()
