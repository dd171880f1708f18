"""The label on every answer. Nothing is looked up by it: a request's identity is minted apart."""

import re
import secrets
from collections.abc import Iterable

from starlette.types import Scope

from atomesh.frontend.http.error_shapes import is_anthropic

_LABEL = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def mint_request_id() -> bytes:
    return b"req-" + secrets.token_hex(16).encode()


def choose_request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The client's `x-request-id` where it is a sound label, else one of ours."""
    for name, value in headers:
        if name == b"x-request-id" and _LABEL.fullmatch(value):
            return value
    return mint_request_id()


def id_headers(scope: Scope, request_id: bytes) -> list[tuple[bytes, bytes]]:
    """Of the answer. Anthropic's clients look for it under a name of their own."""
    headers = [(b"x-request-id", request_id)]
    if is_anthropic(scope["path"]) or any(name == b"anthropic-version" for name, _ in scope["headers"]):
        headers.append((b"request-id", request_id))
    return headers
