from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import EngineError
from atomesh.mesh.backends import sse_reader
from atomesh.mesh.backends.sse_reader import SseReader, data_of

STREAM = b'data: {"a": 1}\n\n: keep-alive\n\nevent: x\r\ndata: b\r\n\r\ndata: [DONE]\n\n'
FRAMES = [b'data: {"a": 1}\n\n', b": keep-alive\n\n", b"event: x\r\ndata: b\r\n\r\n", b"data: [DONE]\n\n"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_frames_are_the_same_wherever_the_bytes_are_cut(places: list[int]) -> None:
    cuts = [0, *sorted(places), len(STREAM)]
    reader = SseReader()
    frames = [frame for a, b in pairwise(cuts) for frame in reader.feed(STREAM[a:b])]

    assert frames == FRAMES
    assert reader.is_between_frames


def test_the_data_of_a_frame() -> None:
    assert [data_of(frame) for frame in FRAMES] == [b'{"a": 1}', b"", b"b", b"[DONE]"]
    assert data_of(b"data: a\ndata: b\n\n") == b"a\nb"
    assert data_of(b"data:a\n\n") == b"a"


def test_half_a_frame_is_kept() -> None:
    reader = SseReader()

    assert reader.feed(b"data: a\n") == []
    assert not reader.is_between_frames
    assert reader.feed(b"\n") == [b"data: a\n\n"]


def test_a_frame_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_reader, "MAX_FRAME_BYTES", 100)

    with pytest.raises(EngineError):
        SseReader().feed(b"data: " + b"x" * 200)
