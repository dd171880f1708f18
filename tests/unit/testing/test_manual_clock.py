import pytest

from atomesh.testing.manual_clock import ManualClock


def test_the_clock_moves_only_when_told_to_and_never_back() -> None:
    clock = ManualClock(5.0)
    assert clock.now() == clock.now() == 5.0
    clock.advance(1.5)
    assert clock.now() == 6.5
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1.0)
