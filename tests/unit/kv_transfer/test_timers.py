from atomesh.kv_transfer.timers import Timers


def test_actions_come_due_in_order_of_their_times() -> None:
    timers, done = Timers(), []
    assert timers.next() is None
    for time in (3.0, 1.0, 2.0, 1.0):
        timers.at(time, lambda time=time: done.append(time))
    assert timers.next() == 1.0
    assert timers.take_due(0.9) == []

    for action in timers.take_due(2.0):
        action()

    assert done == [1.0, 1.0, 2.0]
    assert timers.next() == 3.0
