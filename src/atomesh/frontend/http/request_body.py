"""A request's body off the wire: bounded in size and time, of a kind we read, and decoded into its type."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from atomesh.errors import (
    InvalidRequestError,
    RequestTimeoutError,
    RequestTooLargeError,
    UnsupportedMediaTypeError,
)
from atomesh.frontend.http.disconnect import ClientDisconnectedError
from atomesh.frontend.http.misfit import ValueOf, misfit
from atomesh.frontend.options import FrontendOptions

R = TypeVar("R", bound=msgspec.Struct)

_MAX_SHOWN_BYTES = 4096
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def read_body(headers: Headers, receive: Receive, options: FrontendOptions) -> bytes:
    """The whole body. Raises RequestTooLargeError as soon as the limit is passed, declared or counted,
    RequestTimeoutError when it does not come, UnsupportedMediaTypeError when it is not plain JSON."""
    _check_media_type(headers)
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > options.max_body_bytes:
        raise _too_large(declared, options.max_body_bytes)
    try:
        async with asyncio.timeout(options.body_timeout_s):
            return await _collect(receive, options.max_body_bytes)
    except TimeoutError:
        raise RequestTimeoutError(
            f"the body did not arrive within {options.body_timeout_s:g} s; send it faster"
        ) from None


async def _collect(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(f"more than {limit}", limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _check_media_type(headers: Headers) -> None:
    media_type = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaTypeError(
            f"the content type is {media_type[:100]!r}; send 'Content-Type: application/json'"
        )
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaTypeError(
            f"the content encoding is {encoding[:100]!r}; send the body as it is, without Content-Encoding"
        )


def _too_large(size: str, limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"the body has {size[:32]} bytes; the limit is {limit}: send a smaller one")


@dataclass(frozen=True, slots=True)
class DecodedBody(Generic[R]):
    """`fields` are the top-level names with their undecoded values, also those unknown to the type."""

    request: R
    fields: Mapping[str, msgspec.Raw]

    def unknown_fields(self) -> list[str]:
        known = set(self.request.__struct_encode_fields__)
        return [name for name in self.fields if name not in known]


class BodyDecoder(Generic[R]):
    def __init__(self, kind: type[R]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, body: bytes) -> DecodedBody[R]:
        """Raises InvalidRequestError with the JSON path of what does not fit."""
        if not body.strip():
            raise InvalidRequestError("the body is empty; send a JSON object")
        try:
            if not body.isascii():
                body.decode("utf-8")
            return DecodedBody(self._decoder.decode(body), _fields_decoder.decode(body))
        except msgspec.ValidationError as error:
            raise misfit(error, _sent(body)) from None
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"the body is not UTF-8: byte {error.start} is invalid") from None
        except RecursionError:
            raise InvalidRequestError("the body is nested too deeply; send a flatter one") from None
        except msgspec.DecodeError as error:
            raise InvalidRequestError(f"the body is not JSON: {error}") from None


def _sent(body: bytes) -> ValueOf:
    """Of long values nothing is shown, so they are not decoded either."""

    def value_of(name: str) -> object:
        raw = _fields_decoder.decode(body)[name]
        return msgspec.json.decode(raw) if len(bytes(raw)) <= _MAX_SHOWN_BYTES else {}

    return value_of
