import pytest

from atomesh.kv_transfer.channel import ChannelError
from atomesh.kv_transfer.introduction import Introduction, LayoutError
from atomesh.kv_transfer.wire import Done, Hello, Proof
from atomesh.testing.transport_probe import kv_identity

OURS = kv_identity("d1", block_bytes=64)
THEIRS = kv_identity("p1", block_bytes=64)


def test_a_proof_is_answered_with_a_hello_and_a_hello_with_nothing() -> None:
    introduction = Introduction(OURS)
    assert introduction.hear(Proof()) == Hello("d1", OURS.layout)
    assert introduction.peer is None
    assert introduction.hear(Hello("p1", THEIRS.layout)) is None
    assert introduction.peer == Hello("p1", THEIRS.layout)


@pytest.mark.parametrize("message", [Hello("p1", THEIRS.layout), Done(1)])
def test_nobody_is_heard_before_his_proof(message: Hello | Done) -> None:
    with pytest.raises(ChannelError, match="before the hello"):
        Introduction(OURS).hear(message)


@pytest.mark.parametrize("message", [Proof(), Done(1)])
def test_after_the_proof_comes_the_hello(message: Proof | Done) -> None:
    introduction = Introduction(OURS)
    introduction.hear(Proof())
    with pytest.raises(ChannelError, match="before the hello"):
        introduction.hear(message)


def test_the_field_that_differs_is_named() -> None:
    introduction = Introduction(OURS)
    introduction.hear(Proof())
    with pytest.raises(LayoutError, match="dtype is 'float32' here and 'bfloat16' there"):
        introduction.hear(Hello("p1", kv_identity("p1", block_bytes=64, dtype="bfloat16").layout))
