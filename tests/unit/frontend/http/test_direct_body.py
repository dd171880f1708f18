from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from atomesh.frontend.http.direct_body import NO_DIRECT_BODY, DirectChunks, direct_body, offer_direct_body


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


class Cycle:
    """As much of uvicorn's as a chunk needs."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}
        self.transport = Transport()
        self.flow = FlowControl(self.transport)  # type: ignore[arg-type]
        self.chunked_encoding: bool | None = True
        self.disconnected = False


@pytest.fixture
def cycle() -> Cycle:
    return Cycle()


def test_a_chunk_has_its_size_in_hexadecimal_before_it(cycle: Cycle) -> None:
    offer_direct_body(cycle)  # type: ignore[arg-type]
    direct = direct_body(cycle.scope)
    assert direct.is_free
    direct.write(b"data: 0123456789\n\n")
    assert cycle.transport.written == [b"12\r\ndata: 0123456789\n\n\r\n"]


def test_a_response_that_is_not_in_chunks_takes_none(cycle: Cycle) -> None:
    for encoding in (None, False):
        cycle.chunked_encoding = encoding
        assert not DirectChunks(cycle).is_free  # type: ignore[arg-type]


def test_a_client_that_is_slow_or_gone_takes_none(cycle: Cycle) -> None:
    cycle.flow.pause_writing()
    assert not DirectChunks(cycle).is_free  # type: ignore[arg-type]
    cycle.flow.resume_writing()
    cycle.disconnected = True
    assert not DirectChunks(cycle).is_free  # type: ignore[arg-type]


def test_without_an_offer_everything_goes_the_usual_way() -> None:
    assert direct_body({}) is NO_DIRECT_BODY
    assert not NO_DIRECT_BODY.is_free
