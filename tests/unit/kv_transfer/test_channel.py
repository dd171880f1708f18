import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.kv_transfer.channel import (
    GREETING_BYTES,
    MAC_BYTES,
    MAX_FIRST_FRAME_BYTES,
    MAX_FRAME_BYTES,
    Channel,
    ChannelError,
)
from atomesh.kv_transfer.wire import Done, Notice, Proof, Refused, Said, WireMessage
from atomesh.protocol.kv_handoff import Renew, Reserve
from atomesh.protocol.ticket import Ticket

SECRET = b"the cluster's secret"
HEAD_BYTES = 4


def joined(caller_secret: bytes = SECRET, listener_secret: bytes = SECRET) -> tuple[Channel, Channel]:
    caller = Channel(caller_secret, "caller", b"c" * 32)
    listener = Channel(listener_secret, "listener", b"l" * 32)
    caller.feed(listener.greeting)
    listener.feed(caller.greeting)
    return caller, listener


def proved() -> tuple[Channel, Channel]:
    caller, listener = joined()
    listener.feed(caller.encode(Proof()))
    assert listener.next_message() == Proof()
    return caller, listener


def fault(channel: Channel, data: bytes) -> str:
    with pytest.raises(ChannelError) as caught:  # noqa: PT012 - either of them may find it out
        channel.feed(data)
        while channel.next_message() is not None:
            pass
    return caught.value.fault


def test_what_is_encoded_is_heard_whole_and_in_order() -> None:
    caller, listener = joined()
    said: list[WireMessage] = [Proof(), Said(Renew(b"t" * 16)), Done(7), Refused(8, "no")]
    listener.feed(b"".join(caller.encode(message) for message in said))
    assert [listener.next_message() for _ in said] == said
    assert listener.next_message() is None
    caller.feed(listener.encode(Done(1)))
    assert caller.next_message() == Done(1)


def test_frames_may_come_byte_by_byte() -> None:
    caller = Channel(SECRET, "caller", b"c" * 32)
    listener = Channel(SECRET, "listener", b"l" * 32)
    for byte in listener.greeting:
        assert not caller.is_keyed
        caller.feed(bytes([byte]))
    listener.feed(caller.greeting)
    heard = []
    for byte in caller.encode(Proof()) + caller.encode(Done(3)):
        listener.feed(bytes([byte]))
        heard.append(listener.next_message())
    assert [message for message in heard if message is not None] == [Proof(), Done(3)]


def test_bytes_behind_a_message_are_not_taken_for_a_frame() -> None:
    caller, listener = joined()
    listener.feed(caller.encode(Proof()) + b"payload")
    assert listener.next_message() == Proof()
    assert (listener.take_raw(4), listener.take_raw(10), listener.take_raw(10)) == (b"payl", b"oad", b"")


def test_another_secret_is_found_out_with_the_first_frame() -> None:
    caller, listener = joined(caller_secret=b"guess")
    assert fault(listener, caller.encode(Proof())) == "secret"
    caller, listener = joined(caller_secret=b"guess")
    assert fault(caller, listener.encode(Proof())) == "secret"


def test_one_who_does_not_greet_is_found_out_at_the_first_wrong_byte() -> None:
    listener = Channel(SECRET, "listener", b"l" * 32)
    listener.feed(b"ATOM")
    assert fault(listener, b"X") == "greeting"
    assert fault(Channel(SECRET, "listener", b"l" * 32), b"GET / HTTP/1.1\r\n") == "greeting"


def test_our_own_frames_sent_back_prove_nothing() -> None:
    caller = Channel(SECRET, "caller", b"c" * 32)
    caller.feed(caller.greeting)  # a mirror repeats even the nonce
    assert fault(caller, caller.encode(Proof())) == "secret"


def test_a_frame_of_an_earlier_connection_proves_nothing() -> None:
    caller, _ = joined()
    recorded = caller.encode(Proof())
    listener = Channel(SECRET, "listener", b"m" * 32)
    listener.feed(caller.greeting)
    assert fault(listener, recorded) == "secret"


def test_a_replayed_frame_is_refused() -> None:
    caller, listener = proved()
    frame = caller.encode(Done(1))
    listener.feed(frame)
    assert listener.next_message() == Done(1)
    assert fault(listener, frame) == "mac"


def test_reordered_and_missing_frames_are_refused() -> None:
    caller, listener = proved()
    first, second = caller.encode(Done(1)), caller.encode(Done(2))
    assert fault(listener, second + first) == "mac"


@pytest.mark.parametrize("place", [HEAD_BYTES, HEAD_BYTES + MAC_BYTES - 1, HEAD_BYTES + MAC_BYTES, -1])
def test_a_changed_bit_is_refused(place: int) -> None:
    caller, listener = proved()
    frame = bytearray(caller.encode(Said(Renew(b"t" * 16))))
    frame[place] ^= 1
    assert fault(listener, bytes(frame)) == "mac"


def test_a_truncated_frame_is_not_heard() -> None:
    caller, listener = proved()
    listener.feed(caller.encode(Done(1))[:-1])
    assert listener.next_message() is None


def test_a_frame_too_long_is_refused_by_its_head_alone() -> None:
    _, listener = proved()
    assert fault(listener, (MAX_FRAME_BYTES + 1).to_bytes(4, "little")) == "size"


def test_a_stranger_may_send_only_little() -> None:
    _, listener = joined()
    assert fault(listener, (MAX_FIRST_FRAME_BYTES + 1).to_bytes(4, "little")) == "size"


def test_nothing_is_said_before_the_greeting() -> None:
    with pytest.raises(ChannelError, match="greeting"):
        Channel(SECRET, "caller", b"c" * 32).encode(Proof())


def test_a_message_too_long_is_never_sent() -> None:
    ticket = Ticket(
        ticket_id=b"t" * 16, gateway="g", serial=1, request_id="r", prefill="p", decode="d", ttl_s=1.0
    )
    caller, _ = joined()
    with pytest.raises(ChannelError, match=f"the limit is {MAX_FRAME_BYTES}"):
        caller.encode(Said(Reserve(ticket, [b"h" * 16] * 300_000, 300_000 * 16)))


@pytest.mark.parametrize(
    "message",
    [
        Done(-1),
        Notice(1, b"short", [0], [0]),
        Notice(1, b"g" * 16, [], []),
        Notice(1, b"g" * 16, [-1], [0]),
        Notice(1, b"g" * 16, [0], [2**31]),
    ],
)
def test_what_is_out_of_bounds_is_no_message(message: WireMessage) -> None:
    caller, listener = proved()
    assert fault(listener, caller.encode(message)) == "message"


def test_a_frame_with_a_right_mac_and_a_wrong_content_is_refused() -> None:
    class Unheard(msgspec.Struct, tag="unheard"):
        field: int

    caller, listener = proved()
    assert fault(listener, caller.encode(Unheard(1))) == "message"  # type: ignore[arg-type]


@given(st.binary(max_size=400))
def test_no_bytes_of_a_stranger_do_more_than_be_refused(data: bytes) -> None:
    listener = Channel(SECRET, "listener", b"l" * 32)
    with contextlib.suppress(ChannelError):
        listener.feed(data)
        assert listener.next_message() is None


@given(st.binary(max_size=400), st.integers(0, 3))
def test_no_bytes_after_good_frames_do_more_than_be_refused(data: bytes, frames: int) -> None:
    caller, listener = proved()
    listener.feed(b"".join(caller.encode(Done(n)) for n in range(frames)) + data)
    heard = []
    with contextlib.suppress(ChannelError):
        while (message := listener.next_message()) is not None:
            heard.append(message)
    assert heard == [Done(n) for n in range(frames)][: len(heard)]
    assert len(heard) == frames


def test_a_greeting_is_as_long_as_it_says() -> None:
    assert len(Channel(SECRET, "caller", b"c" * 32).greeting) == GREETING_BYTES
