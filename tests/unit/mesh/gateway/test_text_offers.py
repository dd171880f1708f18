"""Names from servers of text: whose they are, how many there may be, and how long."""

import logging

import pytest

from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.gateway.text_offers import FORGET_S, MAX_OFFERED, OperatorsNames, TextOffers
from atomesh.protocol.worker import ModelDescription, WorkerDescription
from atomesh.testing.manual_clock import ManualClock

URL = "http://server"


def text(name: str) -> ModelDescription:
    return ModelDescription(
        name=name,
        path="",
        architecture="",
        dtype="text",
        vocab_size=0,
        max_model_len=0,
        eos_token_ids=(),
        block_size=32,
        num_blocks=0,
    )


class Bench:
    """One server of text, and what is offered."""

    def __init__(self, *said: str, aliases: tuple[str, ...] = ()) -> None:
        self.clock = ManualClock()
        self.offered: list[str] = []
        self.registry = WorkerRegistry(lambda worker: self.offers.hear(worker))
        self.offers = TextOffers(
            self.registry,
            self.clock,
            OperatorsNames(said, aliases),
            self.offered.append,
            self.offered.remove,
        )
        self.registry.expect(URL)

    def lists(self, *names: str) -> None:
        texts = tuple(map(text, names))
        told = WorkerDescription(
            worker_id=URL,
            incarnation="1",
            pid=0,
            role="unified",
            model=texts[0],
            texts=texts,
            engine="openai",
        )
        self.registry.connected(URL, told, self.clock.now())


@pytest.mark.parametrize("is_worker_first", [True, False])
def test_a_workers_name_is_no_servers(is_worker_first: bool, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    if is_worker_first:
        assert bench.offers.keep("ours")
    bench.lists("ours", "other")
    assert bench.offers.keep("ours")
    bench.lists("ours", "other")

    assert bench.offered == ["other"]
    warnings = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "'ours'" in warnings[0]


@pytest.mark.parametrize("is_worker_first", [True, False])
def test_but_for_what_the_operator_said(is_worker_first: bool) -> None:
    bench = Bench("ours")
    if is_worker_first:
        assert not bench.offers.keep("ours")
    bench.lists("ours")
    assert not bench.offers.keep("ours")

    assert bench.offered == ["ours"]


def test_aliases_are_the_operators() -> None:
    bench = Bench(aliases=("gpt-4", "small=model"))
    bench.lists("gpt-4", "small", "model")

    assert bench.offered == ["model"]


def test_what_nobody_serves_is_forgotten_after_a_while() -> None:
    bench = Bench("said")
    bench.lists("a", "b", "said")
    bench.lists("b")
    bench.clock.advance(FORGET_S - 1)
    bench.offers.look()
    assert bench.offered == ["a", "b", "said"]
    bench.clock.advance(1)
    bench.offers.look()
    assert bench.offered == ["b", "said"]

    bench.registry.lost(URL)
    bench.clock.advance(FORGET_S)
    bench.offers.look()
    assert bench.offered == ["said"]
    bench.lists("a")
    assert bench.offered == ["said", "a"]


def test_ever_new_names_leave_no_more_than_there_may_be() -> None:
    bench = Bench()
    for turn in range(9):
        bench.lists(*(f"{turn}-{number}" for number in range(256)))

    assert len(bench.offered) <= MAX_OFFERED
    assert set(bench.offered) >= {f"8-{number}" for number in range(256)}

    bench.lists(*map(str, range(MAX_OFFERED + 1)))
    assert len(bench.offered) == MAX_OFFERED
