"""What the dispatcher may expect of any back end, whichever engine answers behind it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atomesh.errors import EngineError, InvalidRequestError, ServiceUnavailableError
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.testing.backend_bench import BackendBench, http_bench, read_all, request_of
from atomesh.testing.fake_engine_server import CUT, HOLD, Speech
from atomesh.testing.puppet_bench import PuppetBench

Test = Callable[[BackendBench], Awaitable[None]]


@asynccontextmanager
async def connected(kind: str, directory: Path) -> AsyncIterator[BackendBench]:
    if kind != "atom":
        async with http_bench(kind) as bench:
            yield bench
        return
    puppet = PuppetBench(directory)
    await puppet.come_back()
    async with puppet.running():
        yield puppet


@pytest.fixture(params=["atom", "vllm", "sglang"])
def on_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Test], None]:
    """Runs a test on a bench of each kind."""

    def run(test: Test) -> None:
        async def whole() -> None:
            async with connected(request.param, tmp_path) as bench:
                await test(bench)

        asyncio.run(whole())

    return run


def test_tokens_come_in_order_and_end_with_the_finish(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech([11, 12, 13], finish="length"))
        deltas = await read_all(bench.submit(request_of(1, 2, 3)))

        assert [token for delta in deltas for token in delta.token_ids] == [11, 12, 13]
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]
        assert deltas[-1].finish_reason == "length"
        assert {delta.request_id for delta in deltas} == {"r1-2-3"}

    on_bench(test)


def test_the_token_that_stopped_it_is_named(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech([11, 42], finish="stop", stop_token=42))
        deltas = await read_all(bench.submit(request_of(1, stop_token_ids=(42,))))

        assert (deltas[-1].finish_reason, deltas[-1].stop_token_id) == ("stop", 42)
        assert [token for delta in deltas for token in delta.token_ids] == [11, 42]

    on_bench(test)


def test_every_choice_has_its_own_tokens(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech([11, 12]))
        deltas = await read_all(bench.submit(request_of(1, n=3)))

        for choice in range(3):
            own = [delta for delta in deltas if delta.choice == choice]
            assert [token for delta in own for token in delta.token_ids] == [11, 12]
            assert own[-1].finish_reason == "length"

    on_bench(test)


def test_tokens_are_there_before_the_answer_is_over(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech([11, 12, HOLD, 13]))
        stream = bench.submit(request_of(1))
        first = await asyncio.wait_for(stream.next(), 10)

        assert first is not None
        assert first[0].token_ids == [11]
        bench.go_on()
        assert [token for delta in await read_all(stream) for token in delta.token_ids][-1] == 13

    on_bench(test)


def test_an_abort_reaches_the_engine(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech([11, 12, HOLD, 13]))
        stream = bench.submit(request_of(1))
        await stream.next()
        stream.abort()

        await bench.until(lambda: bench.num_aborted == 1)
        assert bench.worker.state == "ready"

    on_bench(test)


def test_what_is_left_after_its_end_aborts_nothing(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech([11]))
        stream = bench.submit(request_of(1))
        await read_all(stream)
        stream.abort()
        stream.release()
        await asyncio.sleep(0)

        assert bench.num_aborted == 0

    on_bench(test)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequestError), (500, EngineError), (503, ServiceUnavailableError)]
)
def test_refusals_are_told_apart(
    on_bench: Callable[[Test], None], status: int, kind: type[Exception]
) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech(status=status, message="so it is"))

        with pytest.raises(kind) as caught:
            await read_all(bench.submit(request_of(1)))
        assert type(caught.value) is kind
        if status == 400:
            assert "so it is" in str(caught.value)
        assert bench.worker.state == "ready"

    on_bench(test)


def test_a_failure_after_the_first_token_keeps_what_came(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech([11, 12], error_after=True))
        stream = bench.submit(request_of(1))
        first: Any = await stream.next()

        assert first[0].token_ids == [11]
        with pytest.raises(EngineError):
            await read_all(stream)

    on_bench(test)


def test_a_cut_is_a_loss_after_what_came(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech([11, 12, HOLD, CUT, 13]))
        stream = bench.submit(request_of(1))
        first: Any = await stream.next()
        bench.go_on()

        assert first[0].token_ids == [11]
        with pytest.raises(WorkerLostError):
            await read_all(stream)
        await asyncio.wait_for(stream.until_lost(), 10)

    on_bench(test)


def test_an_engine_that_is_gone_is_lost_and_found_again(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech([11, HOLD, 12]))
        stream = bench.submit(request_of(1))
        await bench.until(lambda: bench.num_asked == 1)
        await bench.die()

        with pytest.raises(WorkerLostError):
            await read_all(stream)
        await bench.until(lambda: bench.worker.state == "lost")
        with pytest.raises(WorkerLostError):
            await read_all(bench.submit(request_of(2)))

        bench.says(Speech([21, 22]))
        await bench.come_back()
        await bench.until(lambda: bench.worker.state == "ready")
        tokens = [token for delta in await read_all(bench.submit(request_of(3))) for token in delta.token_ids]
        assert tokens == [21, 22]

    on_bench(test)


def test_the_gateway_ends_all_that_runs(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech([11, 12, HOLD, 13]))
        streams = [bench.submit(request_of(number)) for number in range(3)]
        for stream in streams:
            await stream.next()
        bench.backend.fail_all(ServiceUnavailableError("the server is shutting down"))

        for stream in streams:
            with pytest.raises(ServiceUnavailableError, match="shutting down"):
                await read_all(stream)
        await bench.until(lambda: bench.num_aborted == 3)

    on_bench(test)


def test_an_overloaded_engine_keeps_nobody_waiting(on_bench: Callable[[Test], None]) -> None:
    async def test(bench: BackendBench) -> None:
        bench.says(Speech(status=503, message="too many requests"))
        streams = [bench.submit(request_of(number)) for number in range(50)]

        for stream in streams:
            with pytest.raises(ServiceUnavailableError):
                await read_all(stream)
        assert bench.num_asked == 50

    on_bench(test)
