import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from atomesh.mesh.backends import tireless
from atomesh.mesh.backends.pool import BackendPool
from atomesh.mesh.backends.tireless import tirelessly
from atomesh.mesh.cluster.registry import WorkerRegistry


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tireless, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(tireless, "LONGEST_PAUSE_S", 0.002)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 10.0))


class Failing:
    """A backend that fails as often as there are errors, then stays."""

    def __init__(self, address: str, *errors: Exception) -> None:
        self.address = address
        self._errors = list(errors)
        self.has_come_through = asyncio.Event()

    async def run(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.has_come_through.set()
        await asyncio.Event().wait()


def test_what_fails_begins_anew_and_only_a_new_kind_of_error_has_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: list[Exception] = [RecursionError("deep"), RecursionError("deeper"), OverflowError("far")]

    async def work() -> None:
        if errors:
            raise errors.pop(0)

    run(tirelessly("the look", work))
    assert errors == []
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, True]
    assert all(record.levelno == logging.ERROR for record in caplog.records)
    assert "the look failed" in caplog.messages[0]


def test_one_backend_s_failure_is_no_other_s() -> None:
    async def scenario() -> None:
        registry = WorkerRegistry(lambda _: None)
        pool = BackendPool(lambda _: pytest.fail("nobody joins"), registry)
        good = Failing("good")
        bad = Failing(
            "bad", UnicodeError("label"), RecursionError("deep"), ExceptionGroup("all", [KeyError(1)])
        )
        backends: list[Any] = [bad, good]
        for one in backends:
            pool.join(one)
        running = asyncio.create_task(pool.run())
        await good.has_come_through.wait()
        await bad.has_come_through.wait()
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(scenario())
