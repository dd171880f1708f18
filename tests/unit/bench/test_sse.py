import pytest

from atomesh.bench import sse
from atomesh.bench.sse import EventDecoder, ServerEvent

STREAM = (
    b": keep-alive\n\n"
    b'data: {"a": 1}\n\n'
    b"event: error\r\ndata: x\xc3\xa9\r\n\r\n"
    b"data:one\ndata: two\n\n"
    b"event: lost\n\n"
)
EVENTS = [ServerEvent('{"a": 1}'), ServerEvent("xé", "error"), ServerEvent("one\ntwo")]


def test_reads_names_joins_data_and_drops_comments_and_dataless_events() -> None:
    assert EventDecoder().feed(STREAM) == EVENTS


def test_a_stream_cut_at_every_byte_gives_the_same_events() -> None:
    decoder = EventDecoder()

    events = [event for byte in STREAM for event in decoder.feed(bytes([byte]))]

    assert events == EVENTS


def test_an_event_is_not_given_before_its_blank_line() -> None:
    assert EventDecoder().feed(b"data: x\n") == []


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_LINE_BYTES", 8)

    with pytest.raises(ValueError, match="more than 8 bytes"):
        EventDecoder().feed(b"data: 456")
