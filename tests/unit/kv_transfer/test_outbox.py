from collections.abc import Iterator

import pytest

from atomesh.kv_transfer.outbox import Outbox


class Kernel:
    """Takes `capacity` bytes, at most `most` at once, then would block."""

    def __init__(self, capacity: int, most: int = 3) -> None:
        self.capacity = capacity
        self.most = most
        self.taken = b""

    def send(self, piece: memoryview) -> int:
        if self.capacity == 0:
            raise BlockingIOError
        count = min(len(piece), self.most, self.capacity)
        self.taken += bytes(piece[:count])
        self.capacity -= count
        return count


def pieces(*texts: bytes) -> Iterator[memoryview]:
    return iter([memoryview(text) for text in texts])


def test_everything_goes_in_order() -> None:
    outbox, kernel = Outbox(), Kernel(100)
    assert not outbox
    outbox.put(pieces(b"hello ", b"", b"wide "))
    outbox.put(pieces())
    outbox.put(pieces(b"world"))
    assert outbox
    outbox.write(kernel.send, budget=1000)
    assert kernel.taken == b"hello wide world"
    assert not outbox


def test_what_the_kernel_does_not_take_goes_next_time() -> None:
    outbox, kernel = Outbox(), Kernel(7)
    outbox.put(pieces(b"hello ", b"world"))
    with pytest.raises(BlockingIOError):
        outbox.write(kernel.send, budget=1000)
    assert outbox
    kernel.capacity = 100
    outbox.write(kernel.send, budget=1000)
    assert kernel.taken == b"hello world"


def test_a_budget_ends_a_turn() -> None:
    outbox, kernel = Outbox(), Kernel(100)
    outbox.put(pieces(b"x" * 50))
    outbox.write(kernel.send, budget=10)
    assert len(kernel.taken) == 12
    assert outbox


def test_an_item_is_resumed_when_its_piece_has_gone_and_not_before() -> None:
    done: list[str] = []

    def item() -> Iterator[memoryview]:
        done.append("begun")
        yield memoryview(b"abcdef")
        done.append("gone")

    outbox, kernel = Outbox(), Kernel(4)
    outbox.put(item())
    assert done == []
    with pytest.raises(BlockingIOError):
        outbox.write(kernel.send, budget=1000)
    assert done == ["begun"]
    kernel.capacity = 2
    outbox.write(kernel.send, budget=2)
    assert done == ["begun", "gone"]
    assert not outbox


def test_a_piece_under_way_can_be_blanked() -> None:
    outbox, kernel = Outbox(), Kernel(4)
    outbox.put(pieces(b"abcdef", b"gh"))
    with pytest.raises(BlockingIOError):
        outbox.write(kernel.send, budget=1000)
    outbox.blank(memoryview(b"------"))
    kernel.capacity = 100
    outbox.write(kernel.send, budget=1000)
    assert kernel.taken == b"abcd--gh"
