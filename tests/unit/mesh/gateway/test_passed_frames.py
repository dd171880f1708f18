"""Frames that go through: the same bytes whatever the pieces they come in, and what is kept of them."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import EngineError
from atomesh.mesh.gateway.passed_frames import MAX_FRAME_BYTES, PassedFrames

TEXT = b'data: {"choices":[{"text":"an error, \\n\\ndata: [DONE] and \\"usage\\""}]}'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3}}'
LAST = (b"data: [DONE]", b"data:[DONE]", b'event: error\ndata: {"error":{}}', b'data: {"error":{"code":500}}')
ENDS = st.sampled_from((b"\n\n", b"\r\n\r\n", b"\n\r\n"))


@given(
    frames=st.lists(st.tuples(st.sampled_from((TEXT, USAGE, b": comment", b"data: 1")), ENDS), max_size=6),
    last=st.tuples(st.sampled_from(LAST), ENDS),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_whatever_the_pieces_all_before_the_end_goes_through(
    frames: list[tuple[bytes, bytes]], last: tuple[bytes, bytes], cuts: list[int]
) -> None:
    good = b"".join(frame + end for frame, end in frames)
    stream = good + b"".join(last)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    passed, received = PassedFrames(), b""
    for begin, end in pairwise(places):
        received += passed.feed(stream[begin:end])

    assert received == good
    assert passed.last is not None
    assert passed.last.startswith(last[0])
    assert passed.is_done == (b"[DONE]" in last[0])
    if any(frame == USAGE for frame, _ in frames):
        assert USAGE in passed.tail


def test_half_a_frame_is_kept_back() -> None:
    passed = PassedFrames()

    assert passed.feed(b"data: 1\n\ndata: 2\n") == b"data: 1\n\n"
    assert (passed.is_between_frames, passed.num_frames) == (False, 1)
    assert passed.feed(b"\ndata: 3\n\n") == b"data: 2\n\ndata: 3\n\n"
    assert (passed.is_between_frames, passed.num_frames) == (True, 3)


def test_a_frame_has_a_longest_length() -> None:
    passed = PassedFrames()
    for _ in range(8):
        passed.feed(b"x" * (MAX_FRAME_BYTES // 8))
    with pytest.raises(EngineError, match="more than 8 MiB"):
        passed.feed(b"x")


def test_a_long_frame_is_searched_once_whatever_its_pieces() -> None:
    """Its time is not that of the square: 4 MiB in pieces of 256 bytes took a minute."""
    passed, began = PassedFrames(), time.process_time()
    for _ in range(2**14):
        passed.feed(b"x" * 256)

    assert passed.feed(b"\n\n") == b"x" * 2**22 + b"\n\n"
    assert time.process_time() - began < 1.0
    assert passed.num_bytes == 2**22 + 2
