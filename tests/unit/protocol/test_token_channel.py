import pytest

from atomesh.protocol.frames import (
    Abort,
    GatewayMessage,
    Heartbeat,
    ResetPrefixCache,
    WorkerMessage,
    encode_message,
)
from atomesh.protocol.sealed_channel import NONCE_BYTES, ChannelError
from atomesh.protocol.token_channel import TokenChannel, gateway_channel, worker_channel
from atomesh.protocol.worker import LoadReport

SECRET = b"s" * 32


def joined() -> tuple[TokenChannel[WorkerMessage], TokenChannel[GatewayMessage]]:
    gateway = gateway_channel(SECRET, b"g" * NONCE_BYTES)
    worker = worker_channel(SECRET, b"w" * NONCE_BYTES)
    assert gateway.receive(worker.greeting) == worker.receive(gateway.greeting) == []
    return gateway, worker


def test_a_proof_is_no_message_and_what_follows_is() -> None:
    gateway, worker = joined()
    assert not worker.is_proved
    said = [Abort("r"), ResetPrefixCache()]
    stream = gateway.proof() + b"".join(gateway.seal(encode_message(one)) for one in said)
    assert [one for byte in stream for one in worker.receive(bytes([byte]))] == said
    assert worker.is_proved

    beat = Heartbeat(LoadReport(running=2))
    assert gateway.receive(worker.proof() + worker.seal(encode_message(beat))) == [beat]


def test_a_message_cannot_take_the_place_of_the_proof() -> None:
    gateway, worker = joined()
    with pytest.raises(ChannelError) as caught:
        worker.receive(gateway.seal(encode_message(Abort("r"))))
    assert caught.value.fault == "size"
    assert not worker.is_proved


def test_an_empty_frame_is_no_message_after_the_proof() -> None:
    gateway, worker = joined()
    worker.receive(gateway.proof())
    with pytest.raises(ChannelError) as caught:
        worker.receive(gateway.proof())
    assert caught.value.fault == "message"


def test_messages_of_the_other_direction_are_refused() -> None:
    gateway, worker = joined()
    worker.receive(gateway.proof())
    with pytest.raises(ChannelError, match="not a message of this plane"):
        worker.receive(gateway.seal(encode_message(Heartbeat(LoadReport()))))
