"""Virtual time."""

import pytest

from atomesh.planner.simulator.event_loop import EventLoop


def test_events_happen_in_order_of_time_and_then_of_their_setting() -> None:
    loop = EventLoop()
    seen: list[tuple[float, str]] = []
    for time, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        loop.at(time, lambda name=name: seen.append((loop.now(), name)))

    loop.run()

    assert seen == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_an_event_may_set_others_from_its_own_moment_on() -> None:
    loop = EventLoop()
    seen: list[float] = []

    def tick() -> None:
        seen.append(loop.now())
        if len(seen) < 3:
            loop.after(0.5, tick)

    loop.at(1.0, tick)
    loop.run()

    assert seen == [1.0, 1.5, 2.0]


def test_nothing_happens_after_a_stop() -> None:
    loop = EventLoop()
    seen: list[float] = []
    loop.at(1.0, loop.stop)
    loop.at(2.0, lambda: seen.append(loop.now()))

    loop.run()

    assert seen == []
    assert loop.now() == 1.0


def test_the_past_is_refused() -> None:
    loop = EventLoop()
    loop.at(1.0, lambda: loop.at(0.5, loop.stop))

    with pytest.raises(ValueError, match=r"0\.5 s, but it is 1\.0 s already"):
        loop.run()
