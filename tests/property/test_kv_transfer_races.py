"""Pushes, deadlines and cancels at random moments: what is believed is right, and nothing lands too late."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from atomesh.kv_transfer.factory import make_transport
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.transport import (
    BlockPush,
    Damaged,
    Fenced,
    Heard,
    KVTransport,
    PeerLost,
    Pushed,
    PushFailed,
    Received,
)
from atomesh.protocol.kv_handoff import Grant, Renew
from atomesh.testing.transport_probe import TransportProbe, kv_identity

BLOCK_BYTES = 300_000
NUM_BLOCKS = 8
TICKET = b"t" * 16
POISON = 255
DEADLINES_S = (0.0, 0.0002, 0.0005, 0.001, 0.002, 20.0, 20.0)


@dataclass
class Pair:
    p: TransportProbe
    d: TransportProbe
    caller: str


@pytest.fixture(params=["shm", "tcp"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    def probe(name: str) -> TransportProbe:
        listen = f"unix:{tmp_path}/{name}" if request.param == "shm" else "127.0.0.1:0"

        def make(pool: PoolMemory, on_event: Callable[[], None]) -> KVTransport:
            return make_transport(listen, pool, kv_identity(name, block_bytes=BLOCK_BYTES), on_event)

        return TransportProbe(PoolMemory(NUM_BLOCKS, BLOCK_BYTES), make)

    p, d = probe("p"), probe("d")
    for block in range(NUM_BLOCKS):
        d.fill(block, 0)
    p.transport.send(d.address, Renew(TICKET))
    yield Pair(p, d, d.wait(Heard).peer)
    p.close()
    d.close()


def test_what_is_received_is_what_was_pushed(pair: Pair, soak: bool) -> None:
    dice = random.Random(2026)
    outcomes = [hand_over(pair, dice, number) for number in range(5000 if soak else 150)]

    assert {"received", "not received"} == set(outcomes)
    assert not any(isinstance(event, PeerLost | Damaged) for event in (*pair.p.unread(), *pair.d.unread()))


def hand_over(pair: Pair, dice: random.Random, number: int) -> str:
    """One push with a fate by the dice. P spoils its blocks as soon as it may, D as soon as it is fenced."""
    p, d = pair.p, pair.d
    grant = number.to_bytes(16, "little")
    sources = dice.sample(range(NUM_BLOCKS), dice.randint(1, 4))
    targets = dice.sample(range(NUM_BLOCKS), len(sources))
    value = dice.randrange(1, POISON)
    for block in sources:
        p.fill(block, value)
    d.transport.admit(pair.caller, grant, dict(enumerate(targets)))
    d.transport.send(pair.caller, Grant(TICKET, grant, []))
    p.wait(Heard)

    pushes = [BlockPush(index, block) for index, block in enumerate(sources)]
    p.transport.push(d.address, grant, pushes, number, dice.choice(DEADLINES_S))
    is_cancelled = dice.random() < 0.3
    if is_cancelled:
        pause(dice)
        d.transport.cancel(grant)
    end = p.wait(Pushed, PushFailed)
    assert end.push_id == number
    for block in sources:
        p.fill(block, POISON)
    if not is_cancelled:
        pause(dice)
        d.transport.cancel(grant)
    assert d.wait(Fenced) == Fenced(grant)
    return check(d, end, targets, value)


def check(d: TransportProbe, end: Pushed | PushFailed, targets: list[int], value: int) -> str:
    received = [event for event in d.take_unread() if isinstance(event, Received)]
    before = d.values()
    if received:
        assert [before[target] for target in targets] == [value] * len(targets)
    else:
        assert isinstance(end, PushFailed)
    assert not any(before[block] for block in range(NUM_BLOCKS) if block not in targets)
    for block in range(NUM_BLOCKS):
        d.fill(block, 0)
    return "received" if received else "not received"


def pause(dice: random.Random) -> None:
    """Some microseconds of doing nothing."""
    for _ in itertools.repeat(None, dice.randrange(2000)):
        pass
