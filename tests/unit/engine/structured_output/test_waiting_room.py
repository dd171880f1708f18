"""Requests whose grammars are being compiled: who comes out, and who does not."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue

import pytest

from atomesh.engine.structured_output import waiting_room
from atomesh.engine.structured_output.waiting_room import Prepared, WaitingRoom
from atomesh.errors import AtomeshError, InvalidRequestError, ServiceUnavailableError
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec

PATIENCE_S = 10.0


def request(request_id: str) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id, prompt_token_ids=[1], sampling=SamplingSpec(seed=1, max_tokens=1)
    )


@dataclass
class SlowGrammars:
    """Prepares only when it is let; a request "bad" cannot be."""

    gate: threading.Event = field(default_factory=threading.Event)

    def is_ready(self, request: GenerationRequest) -> bool:
        return False

    def prepare(self, request: GenerationRequest) -> GenerationRequest:
        assert self.gate.wait(PATIENCE_S)
        if request.request_id == "bad":
            raise InvalidRequestError("it cannot be obeyed")
        return request


class Bench:
    """This thread is the engine's."""

    def __init__(self) -> None:
        self.grammars = SlowGrammars()
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.room = WaitingRoom(self.grammars, self.posted.put)
        self.out: dict[str, Prepared] = {}

    def enter(self, request_id: str, owner: object = "gateway") -> None:
        def then(prepared: Prepared) -> None:
            self.out[request_id] = prepared

        self.room.enter(owner, request(request_id), then)

    def obey(self, count: int) -> None:
        for _ in range(count):
            self.posted.get(timeout=PATIENCE_S)()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.grammars.gate.set()
    made.room.close()


def test_who_is_ready_comes_out_and_who_cannot_be_comes_out_with_the_reason(bench: Bench) -> None:
    bench.enter("good")
    bench.enter("bad")
    assert (len(bench.room), bench.out) == (2, {})
    bench.grammars.gate.set()
    bench.obey(2)
    assert bench.out["good"] == request("good")
    assert isinstance(bench.out["bad"], InvalidRequestError)
    assert len(bench.room) == 0


def test_who_left_or_lost_its_gateway_never_comes_out(bench: Bench) -> None:
    bench.enter("left")
    bench.enter("lost", owner="another")
    bench.enter("stays")
    assert bench.room.leave("gateway", "left")
    assert not bench.room.leave("gateway", "left")
    bench.room.empty("another")
    bench.grammars.gate.set()
    bench.obey(3)
    assert list(bench.out) == ["stays"]


def test_who_left_and_asks_again_comes_out_once(bench: Bench) -> None:
    bench.enter("again")
    bench.room.leave("gateway", "again")
    bench.enter("again")
    bench.grammars.gate.set()
    bench.obey(1)
    first = dict(bench.out)
    bench.obey(1)
    assert len({**first, **bench.out}) == 1
    assert len(bench.room) == 0


def test_an_id_waits_once_and_the_room_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "MOST_WAITING", 2)
    bench.enter("one")
    with pytest.raises(AtomeshError, match="already in use"):
        bench.enter("one")
    bench.enter("one", owner="another")
    with pytest.raises(ServiceUnavailableError, match="too many grammars"):
        bench.enter("three")


def test_nobody_waits_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "PATIENCE_S", 0.01)
    bench.enter("late")
    bench.obey(1)
    assert isinstance(bench.out["late"], ServiceUnavailableError)
    bench.grammars.gate.set()
    bench.obey(1)
    assert isinstance(bench.out["late"], ServiceUnavailableError)
