import pytest

from atomesh.cli.restart_policy import EX_CONFIG, Ending, GiveUp, Restart, decide


def test_delays_double_up_to_half_a_minute() -> None:
    decisions = [decide(Ending(1, quick, has_served=True)) for quick in range(1, 12)]
    delays = [decision.delay_s for decision in decisions if isinstance(decision, Restart)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0])


def test_a_huge_count_is_no_overflow() -> None:
    assert decide(Ending(-9, 10**9, has_served=True)) == Restart(30.0)


@pytest.mark.parametrize("has_served", [True, False])
def test_a_wrong_configuration_is_not_tried_again(has_served: bool) -> None:
    assert isinstance(decide(Ending(EX_CONFIG, 1, has_served)), GiveUp)


def test_what_never_got_ready_is_given_up_after_four_starts() -> None:
    decisions = [decide(Ending(-9, quick, has_served=False)) for quick in (1, 2, 3, 4)]
    assert [type(decision) for decision in decisions] == [Restart, Restart, Restart, GiveUp]
