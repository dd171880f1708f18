import asyncio
from typing import Any

import msgspec
import pytest
from starlette.datastructures import Headers

from atomesh.errors import InvalidRequestError, RequestTooLargeError, UnsupportedMediaTypeError
from atomesh.frontend.http.disconnect import ClientDisconnectedError
from atomesh.frontend.http.request_body import BodyDecoder, read_body
from atomesh.frontend.options import FrontendOptions


class Body(msgspec.Struct, frozen=True):
    count: int | None = None
    items: list[dict[str, int]] | None = None


def receiver(*parts: bytes, ends: bool = True) -> Any:
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if ends:
        messages[-1]["more_body"] = False

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    return receive


def read(*parts: bytes, ends: bool = True, limit: int = 8, **headers: str) -> bytes:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(
        read_body(Headers(fields), receiver(*parts, ends=ends), FrontendOptions(max_body_bytes=limit))
    )


def test_a_body_is_joined_up_to_its_limit() -> None:
    assert read(b"1234", b"5678") == b"12345678"
    with pytest.raises(RequestTooLargeError, match="more than 8 bytes; the limit is 8"):
        read(b"1234", b"5678", b"9")
    with pytest.raises(RequestTooLargeError, match="has 9 bytes"):
        read(b"1", content_length="9")
    with pytest.raises(ClientDisconnectedError):
        read(b"1", ends=False)


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"]
)
def test_json_is_read_under_its_names(kind: str) -> None:
    assert read(b"{}", content_type=kind) == b"{}"
    with pytest.raises(UnsupportedMediaTypeError):
        read(b"{}", content_type="text/plain")
    with pytest.raises(UnsupportedMediaTypeError):
        read(b"{}", content_encoding="br")


def test_decoding_tells_unknown_fields_and_the_path_of_a_misfit() -> None:
    decoder = BodyDecoder(Body)
    decoded = decoder.decode(b'{"count": 3, "later": [1], "soon": null}')
    assert decoded.request.count == 3
    assert sorted(decoded.unknown_fields()) == ["later", "soon"]
    with pytest.raises(InvalidRequestError) as caught:
        decoder.decode(b'{"items": [{"a": 1}, {"b": "x"}]}')
    assert caught.value.param == "items[1][...]"
    with pytest.raises(InvalidRequestError) as caught:
        decoder.decode(b"[]")
    assert caught.value.param is None
