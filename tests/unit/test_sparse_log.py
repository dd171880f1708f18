from atomesh.sparse_log import SparseLog
from atomesh.testing.manual_clock import ManualClock


def test_one_line_an_interval_which_tells_of_those_left_out() -> None:
    clock = ManualClock()
    log = SparseLog(clock, 1.0)
    assert [log.admit() for _ in range(4)] == [0, None, None, None]
    clock.advance(0.5)
    assert log.admit() is None
    clock.advance(0.5)
    assert [log.admit(), log.admit()] == [4, None]
    clock.advance(7.0)
    assert log.admit() == 1
    clock.advance(7.0)
    assert log.admit() == 0
