import asyncio
from collections.abc import Awaitable, Callable

import pytest

from atomesh.errors import AtomeshError, ContextLengthError, EngineError
from atomesh.mesh.backends.request_stream import MAX_UNREAD_BYTES, MAX_UNREAD_STEPS, RequestStream
from atomesh.protocol.generation import TokenDelta, TokenLogprobs, WireError


def ignore(_shall_abort: bool) -> None:
    """There is no connection to leave."""


def delta(token: int, choice: int = 0, finished: bool = False) -> TokenDelta:
    reason = "stop" if finished else None
    return TokenDelta(request_id="r", choice=choice, token_ids=[token], finish_reason=reason)


def failure(kind: str) -> TokenDelta:
    return TokenDelta(request_id="r", finish_reason="error", error=WireError(kind, "words", "field"))


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


def test_it_ends_when_each_choice_has_finished() -> None:
    async def scenario() -> None:
        stream = RequestStream(2, ignore)
        stream.push([delta(1), delta(2, choice=1, finished=True)])
        assert not stream.is_over
        stream.push([delta(3, finished=True)])
        assert stream.is_over
        steps = [await stream.next(), await stream.next(), await stream.next()]
        assert [None if s is None else [d.token_ids for d in s] for s in steps] == [[[1], [2]], [[3]], None]

    run(scenario)


def test_who_waits_is_woken() -> None:
    async def scenario() -> None:
        stream = RequestStream(1, ignore)
        waiting = asyncio.create_task(stream.next())
        await asyncio.sleep(0)
        stream.push([delta(1)])
        assert await waiting == [delta(1)]

    run(scenario)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ContextLengthError", ContextLengthError),
        ("EngineError", EngineError),
        ("AuthenticationError", EngineError),
        ("SystemExit", EngineError),
    ],
)
def test_a_failure_comes_after_what_came_before_it(kind: str, expected: type[AtomeshError]) -> None:
    async def scenario() -> None:
        stream = RequestStream(1, ignore)
        stream.push([delta(1)])
        stream.push([failure(kind)])
        assert await stream.next() == [delta(1)]
        with pytest.raises(expected, match="words") as caught:
            await stream.next()
        assert type(caught.value) is expected
        assert caught.value.param == "field"

    run(scenario)


def test_a_loss_after_the_end_changes_nothing() -> None:
    async def scenario() -> None:
        stream = RequestStream(1, ignore)
        stream.push([delta(1, finished=True)])
        stream.fail(EngineError("lost"))
        assert await stream.next() == [delta(1, finished=True)]
        assert await stream.next() is None

    run(scenario)


def test_the_prefill_leg_is_over_with_each_choices_first_token() -> None:
    async def scenario() -> None:
        stream = RequestStream(2, ignore, is_first_token_all=True)
        stream.push([delta(1), delta(2, choice=1, finished=True)])
        assert stream.is_over
        assert [d.token_ids for d in await stream.next() or []] == [[1], [2]]
        assert await stream.next() is None

    run(scenario)


@pytest.mark.parametrize(
    ("is_first_token_all", "arrived", "shall_abort"),
    [(False, [], True), (False, [delta(1, finished=True)], False), (True, [delta(1)], True)],
    ids=["nothing yet", "all of it", "a hand-off may be under way"],
)
def test_aborting_tells_the_worker_only_where_it_may_still_hold_something(
    is_first_token_all: bool, arrived: list[TokenDelta], shall_abort: bool
) -> None:
    async def scenario() -> None:
        told: list[bool] = []
        stream = RequestStream(1, told.append, is_first_token_all=is_first_token_all)
        if arrived:
            stream.push(arrived)
        stream.abort()
        stream.release()
        assert told == [shall_abort, False]

    run(scenario)


async def read_to_failure(stream: RequestStream) -> int:
    """The number of steps before the stream fails of its slow reader."""
    steps = 0
    try:
        while await stream.next() is not None:
            steps += 1
    except EngineError as error:
        assert "lie unread" in error.message  # noqa: PT017
        return steps
    raise AssertionError("it ended well")


def test_a_reader_too_many_steps_behind_loses_the_answer() -> None:
    async def scenario() -> None:
        told: list[bool] = []
        stream = RequestStream(1, told.append)
        assert all(stream.push([delta(1)]) for _ in range(MAX_UNREAD_STEPS))
        assert await stream.next() == [delta(1)]
        assert stream.push([delta(1)])
        assert not stream.push([delta(1)])
        assert stream.is_over
        assert stream.push([delta(1)]), "what was on its way when the worker was told is dropped"
        assert await read_to_failure(stream) == MAX_UNREAD_STEPS + 1
        stream.abort()
        assert told == [False], "the worker knows already"

    run(scenario)


def test_a_reader_too_many_logprobs_behind_loses_the_answer() -> None:
    async def scenario() -> None:
        stream = RequestStream(1, ignore)
        entries = [TokenLogprobs(1, -1.0, 1, [(i, -1.0) for i in range(20)])] * 100
        step = [TokenDelta(request_id="r", token_ids=[1] * 100, logprobs=entries)]
        fits = MAX_UNREAD_BYTES // (112 * 100 * 22)
        assert all(stream.push(step) for _ in range(fits))
        assert not stream.push(step)
        assert await read_to_failure(stream) == fits + 1

    run(scenario)


def test_an_answer_that_is_whole_is_delivered_however_late() -> None:
    async def scenario() -> None:
        stream = RequestStream(1, ignore)
        assert all(stream.push([delta(1)]) for _ in range(MAX_UNREAD_STEPS))
        assert stream.push([delta(1, finished=True)])
        steps = 0
        while await stream.next() is not None:
            steps += 1
        assert steps == MAX_UNREAD_STEPS + 1

    run(scenario)


@pytest.mark.parametrize(
    "bad",
    [
        TokenDelta(request_id="r", token_ids=[5, -5]),
        TokenDelta(request_id="r", token_ids=[2**63]),
        TokenDelta(request_id="r", token_ids=[1], logprobs=[TokenLogprobs(-1, 0.0, 1, [])]),
        TokenDelta(request_id="r", token_ids=[1], logprobs=[TokenLogprobs(1, 0.0, 1, [(2**31, -1.0)])]),
        TokenDelta(request_id="r", prompt_logprobs=[None, TokenLogprobs(1, 0.0, 1, [(-3, -1.0)])]),
    ],
)
def test_a_token_that_no_model_has_is_the_engine_s_fault(bad: TokenDelta) -> None:
    async def scenario() -> None:
        left: list[bool] = []
        stream = RequestStream(1, left.append)
        assert stream.push([delta(1)])
        assert not stream.push([bad])
        assert [one.token_ids for one in await stream.next() or []] == [[1]]
        with pytest.raises(EngineError, match="no model has"):
            await stream.next()

    run(scenario)
