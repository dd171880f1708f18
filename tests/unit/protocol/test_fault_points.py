"""Fault points fire as often as they were armed, in any thread, and never where faults are off."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from atomesh.errors import InvalidRequestError, PermissionDeniedError
from atomesh.protocol.fault_points import MAX_SHOTS, FaultPoints, NoFaults


def test_a_point_fires_as_often_as_it_was_armed() -> None:
    points = FaultPoints()
    assert not points.fires("kv_drop_push")
    points.arm("kv_drop_push", 2)
    assert [points.fires("kv_drop_push") for _ in range(3)] == [True, True, False]
    assert not points.fires("kv_flip_bit")


def test_a_shot_carries_its_argument() -> None:
    points = FaultPoints()
    points.arm("step_delay", 1, 0.25)
    assert points.take("step_delay") == 0.25
    assert points.take("step_delay") is None


def test_an_argument_of_zero_fires_too() -> None:
    points = FaultPoints()
    points.arm("kv_delay_push")
    assert points.fires("kv_delay_push")


def test_arming_again_replaces_what_is_left() -> None:
    points = FaultPoints()
    points.arm("kv_drop_push", 5)
    points.arm("kv_drop_push", 1)
    assert [points.fires("kv_drop_push") for _ in range(2)] == [True, False]
    points.arm("kv_drop_push", 3)
    points.arm("kv_drop_push", 0)
    assert not points.fires("kv_drop_push")


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequestError, match=r"'typo'.*kv_drop_push") as caught:
        FaultPoints().arm("typo")
    assert caught.value.param == "point"


@pytest.mark.parametrize("count", [-1, MAX_SHOTS + 1])
def test_a_count_out_of_bounds_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequestError, match=str(count)):
        FaultPoints().arm("step_fail", count)


def test_many_threads_take_each_shot_once() -> None:
    points = FaultPoints()
    points.arm("step_fail", 1000)
    with ThreadPoolExecutor(8) as threads:
        fired = list(threads.map(lambda _: points.fires("step_fail"), range(3000)))
    assert fired.count(True) == 1000


def test_where_faults_are_off_nothing_can_be_armed_and_nothing_fires() -> None:
    points = NoFaults()
    with pytest.raises(PermissionDeniedError, match="--enable-faults"):
        points.arm("kv_drop_push")
    assert not points.fires("kv_drop_push")
