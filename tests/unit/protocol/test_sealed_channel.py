"""Whoever sits between the two can cut their connection, and no more."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.protocol.sealed_channel import (
    MAC_BYTES,
    NONCE_BYTES,
    ChannelError,
    PlaneFormat,
    SealedChannel,
)

SECRET = b"the cluster's secret"
PLANE = PlaneFormat(b"A PLANE 1", b"a plane", max_frame_bytes=1000, max_first_frame_bytes=10)
HEAD_BYTES = 4
C, L = b"c" * NONCE_BYTES, b"l" * NONCE_BYTES


def joined(other: PlaneFormat = PLANE, secret: bytes = SECRET) -> tuple[SealedChannel, SealedChannel]:
    caller, listener = SealedChannel(PLANE, SECRET, "caller", C), SealedChannel(other, secret, "listener", L)
    caller.feed(listener.greeting)
    listener.feed(caller.greeting)
    return caller, listener


def proved() -> tuple[SealedChannel, SealedChannel]:
    caller, listener = joined()
    listener.feed(caller.seal(b""))
    assert listener.next_body() == b""
    return caller, listener


def bodies(channel: SealedChannel) -> list[bytes]:
    return list(iter(channel.next_body, None))


def fault(channel: SealedChannel, data: bytes) -> str:
    with pytest.raises(ChannelError) as caught:  # noqa: PT012 - either of them may find it out
        channel.feed(data)
        bodies(channel)
    return caught.value.fault


@given(st.lists(st.binary(max_size=100), max_size=6), st.integers(1, 64))
def test_bodies_survive_any_cut_of_the_stream(said: list[bytes], cut: int) -> None:
    caller, listener = proved()
    stream = b"".join(map(caller.seal, said))
    heard = []
    for start in range(0, len(stream), cut):
        listener.feed(stream[start : start + cut])
        heard += bodies(listener)
    assert heard == said


def test_a_frame_from_outside_is_refused() -> None:
    _, listener = proved()
    assert fault(listener, (5).to_bytes(4, "little") + bytes(MAC_BYTES) + b"right") == "mac"


def test_a_frame_of_another_session_is_refused() -> None:
    caller = SealedChannel(PLANE, SECRET, "caller", C)
    caller.feed(SealedChannel(PLANE, SECRET, "listener", b"m" * NONCE_BYTES).greeting)
    caller.seal(b"")
    _, listener = proved()
    assert fault(listener, caller.seal(b"from there")) == "mac"


def test_a_replayed_frame_is_refused() -> None:
    caller, listener = proved()
    frame = caller.seal(b"once")
    listener.feed(frame)
    assert bodies(listener) == [b"once"]
    assert fault(listener, frame) == "mac"


def test_a_frame_sent_back_to_its_writer_is_refused() -> None:
    caller, listener = proved()
    caller.feed(listener.seal(b""))
    assert bodies(caller) == [b""]
    assert fault(caller, caller.seal(b"mine")) == "mac"


def test_frames_in_another_order_are_refused() -> None:
    caller, listener = proved()
    first, second = caller.seal(b"1"), caller.seal(b"2")
    assert fault(listener, second + first) == "mac"


def test_a_frame_left_out_is_noticed_with_the_next() -> None:
    caller, listener = proved()
    caller.seal(b"1")
    assert fault(listener, caller.seal(b"2")) == "mac"


def test_a_truncated_frame_is_not_heard_and_its_rest_cannot_be_another_frame() -> None:
    caller, listener = proved()
    listener.feed(caller.seal(b"12345")[:-2])
    assert bodies(listener) == []
    assert fault(listener, caller.seal(b"6")) == "mac"


@given(st.integers(0, HEAD_BYTES + MAC_BYTES + 3), st.integers(0, 7))
def test_no_bit_can_be_changed(place: int, bit: int) -> None:
    caller, listener = proved()
    frame = bytearray(caller.seal(b"body"))
    frame[place] ^= 1 << bit
    with contextlib.suppress(ChannelError):
        listener.feed(frame + bytes(1000))
        assert bodies(listener) == []
        pytest.fail("the change was not noticed")


def test_a_proof_cannot_be_used_by_another_who_passes_it_on() -> None:
    """As a relay does: the caller's frames reach a listener that did not greet this caller."""
    caller, _ = joined()
    listener = SealedChannel(PLANE, SECRET, "listener", b"m" * NONCE_BYTES)
    listener.feed(caller.greeting)
    assert fault(listener, caller.seal(b"")) == "secret"


def test_a_mirror_knows_no_secret() -> None:
    caller = SealedChannel(PLANE, SECRET, "caller", C)
    caller.feed(caller.greeting)
    assert fault(caller, caller.seal(b"")) == "secret"


def test_another_secret_is_found_out_with_the_first_frame() -> None:
    caller, listener = joined(secret=b"guess")
    assert fault(listener, caller.seal(b"")) == "secret"
    assert not listener.is_proved


def test_keys_of_one_plane_are_of_no_use_on_another() -> None:
    caller, listener = joined(replace(PLANE, label=b"another plane"))
    assert fault(listener, caller.seal(b"")) == "secret"


def test_a_stranger_may_send_only_little() -> None:
    _, listener = joined()
    assert fault(listener, (11).to_bytes(4, "little")) == "size"
    caller, listener = proved()
    listener.feed(caller.seal(bytes(1000)))
    assert bodies(listener) == [bytes(1000)]
    assert fault(listener, (1001).to_bytes(4, "little")) == "size"


def test_a_frame_too_long_is_never_sealed() -> None:
    caller, _ = joined()
    with pytest.raises(ChannelError, match="the limit is 1000"):
        caller.seal(bytes(1001))


def test_nothing_is_sealed_before_the_greeting() -> None:
    with pytest.raises(ChannelError, match="greeting"):
        SealedChannel(PLANE, SECRET, "caller", C).seal(b"")


def test_who_does_not_greet_is_found_out_at_the_first_wrong_byte() -> None:
    assert fault(SealedChannel(PLANE, SECRET, "listener", L), b"A PLAX") == "greeting"


@given(st.binary(max_size=200))
def test_no_bytes_of_a_stranger_get_through(data: bytes) -> None:
    _, listener = joined()
    with contextlib.suppress(ChannelError):
        listener.feed(data)
        assert bodies(listener) == []
    assert not listener.is_proved
