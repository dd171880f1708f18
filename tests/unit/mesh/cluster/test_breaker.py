import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import (
    AtomeshError,
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    RateLimitError,
    ServiceUnavailableError,
    UnsupportedFeatureError,
)
from atomesh.mesh.cluster.breaker import (
    CLOSED,
    FIRST_BACK_OFF_S,
    LONGEST_BACK_OFF_S,
    MAX_FAULTS,
    Breaker,
    is_fault,
)
from atomesh.mesh.cluster.registry import Commitment, WorkerRegistry
from atomesh.protocol.worker import LoadReport
from atomesh.testing.mesh_snapshots import worker_description


def after(*faults_at: float) -> Breaker:
    breaker = CLOSED
    for now in faults_at:
        breaker = breaker.failed(now)
    return breaker


def test_it_opens_with_the_last_of_so_many_faults_in_a_row() -> None:
    four = after(1.0, 2.0, 3.0, 4.0)
    assert (four.state(4.0), four.lets_through(4.0)) == ("closed", True)
    assert four.succeeded() == CLOSED
    five = four.failed(5.0)
    assert (five.faults, five.retry_at) == (MAX_FAULTS, 5.0 + FIRST_BACK_OFF_S)
    assert [five.state(at) for at in (5.0, 5.999, 6.0)] == ["open", "open", "half-open"]
    assert [five.lets_through(at) for at in (5.0, 5.999, 6.0)] == [False, False, True]
    assert five.why_not(5.5) == "failed 5 times in a row: tried again in 0.5 s"


def test_the_back_off_doubles_up_to_its_limit() -> None:
    waits = [(after(*[0.0] * number).retry_at or 0.0) for number in range(MAX_FAULTS, MAX_FAULTS + 8)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


@given(st.lists(st.booleans(), max_size=40))
def test_it_is_open_exactly_after_so_many_faults_without_a_success(outcomes: list[bool]) -> None:
    breaker, in_a_row = CLOSED, 0
    for is_good in outcomes:
        breaker = breaker.succeeded() if is_good else breaker.failed(0.0)
        in_a_row = 0 if is_good else in_a_row + 1
        assert breaker.faults == in_a_row
        assert breaker.lets_through(0.0) == (in_a_row < MAX_FAULTS)
        assert breaker.lets_through(LONGEST_BACK_OFF_S)


@pytest.mark.parametrize(
    ("error", "is_the_workers"),
    [
        (EngineError("x"), True),
        (ServiceUnavailableError("x"), True),
        (AtomeshError("x"), True),
        (InvalidRequestError("x"), False),
        (RateLimitError("x"), False),
        (UnsupportedFeatureError("x"), False),
        (DeadlineExceededError("x"), False),
    ],
)
def test_what_counts(error: AtomeshError, is_the_workers: bool) -> None:
    assert is_fault(error) is is_the_workers


class Observed:
    def __init__(self) -> None:
        self.registry = WorkerRegistry(lambda _: None)
        self.registry.expect("w")
        self.registry.connected("w", worker_description("w"), now=0.0)

    @property
    def breaker(self) -> Breaker:
        return self.registry.snapshot().workers[0].breaker

    def leg(self) -> Commitment:
        return self.registry.commit("w", prefill_tokens=1, sequences=1)

    def fail(self, times: int = 1, now: float = 0.0) -> None:
        for _ in range(times):
            leg = self.leg()
            leg.failed(now)
            leg.end()


def test_one_probe_at_a_time_and_its_first_token_closes() -> None:
    world = Observed()
    world.fail(MAX_FAULTS)
    assert world.breaker.state(1.0) == "half-open"
    probe = world.leg()
    assert not world.breaker.lets_through(1.0)
    assert world.breaker.why_not(1.0) == "failed 5 times in a row: a probe is under way"
    probe.prefilled()
    assert world.breaker == CLOSED
    probe.end()
    assert world.breaker == CLOSED


def test_a_probe_that_fails_waits_twice_as_long() -> None:
    world = Observed()
    world.fail(MAX_FAULTS)
    world.fail(now=1.0)
    assert (world.breaker.retry_at, world.breaker.probes) == (3.0, 0)


def test_a_probe_without_a_verdict_makes_room_for_another() -> None:
    world = Observed()
    world.fail(MAX_FAULTS)
    world.leg().end()
    assert world.breaker.lets_through(1.0)
    assert world.breaker.faults == MAX_FAULTS


def test_what_began_before_it_opened_has_no_say() -> None:
    world = Observed()
    good, bad = world.leg(), world.leg()
    world.fail(MAX_FAULTS)
    open_ = world.breaker
    good.succeeded()
    bad.failed(0.5)
    good.end()
    bad.end()
    assert world.breaker == open_


def test_a_death_is_one_fault_whatever_it_takes_along_and_survives_the_restart() -> None:
    world = Observed()
    legs = [world.leg() for _ in range(9)]
    world.registry.heard("w", LoadReport(), now=3.0)
    world.registry.lost("w")
    for leg in legs:
        leg.end()
    assert world.breaker == Breaker(faults=1)
    world.registry.connected("w", worker_description("w"), now=4.0)
    assert world.breaker == Breaker(faults=1)
    world.registry.lost("w")  # an idle worker that goes has failed nobody
    assert world.breaker == Breaker(faults=1)
