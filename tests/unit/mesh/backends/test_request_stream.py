import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from atomesh.errors import AtomeshError, ContextLengthError, EngineError
from atomesh.frontend.token_service import Carried, Carry
from atomesh.mesh.backends.request_stream import (
    CARRIED_STEPS,
    MAX_CARRIED_BYTES,
    MAX_UNREAD_BYTES,
    MAX_UNREAD_STEPS,
    RequestStream,
)
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.protocol.generation import Timings, TokenDelta, TokenLogprobs, WireError


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


class Client:
    """Takes what may go ahead, as long as it is told to."""

    def __init__(self, *answers: Carried) -> None:
        self.answers = list(answers)
        self.got: list[int] = []
        self.untold: list[int] = []
        self.carry = Carry(self.take, self.hear)

    def hear(self, deltas: Sequence[TokenDelta]) -> None:
        self.untold += [token for one in deltas for token in one.token_ids]

    def take(self, deltas: Sequence[TokenDelta]) -> Carried:
        answer = self.answers.pop(0) if self.answers else Carried.YES
        if answer is not Carried.NO:
            self.got += [token for one in deltas for token in one.token_ids]
        return answer


async def parked(stream: RequestStream, client: Client) -> "asyncio.Task[list[TokenDelta] | None]":
    reader = asyncio.create_task(stream.next(client.carry))
    await asyncio.sleep(0)
    return reader


def test_mere_tokens_go_ahead_and_are_told_with_what_comes_next() -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client()
        reader = await parked(stream, client)
        stream.push([delta(1)])
        stream.push([delta(2)])
        await asyncio.sleep(0)
        assert (client.got, reader.done()) == ([1, 2], False)
        stream.push([delta(3, finished=True)])
        assert await reader == [delta(1), delta(2), delta(3, finished=True)]
        assert client.got == [1, 2]
        assert await stream.next() is None

    run(scenario)


def test_the_reader_is_never_further_behind_than_it_may_be() -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client()
        reader = await parked(stream, client)
        for token in range(CARRIED_STEPS + 1):
            stream.push([delta(token)])
        told = await reader
        assert told is not None
        assert [one.token_ids for one in told] == [[token] for token in range(CARRIED_STEPS + 1)]
        assert client.got == list(range(CARRIED_STEPS))  # the last came when the reader was being woken

    run(scenario)


@pytest.mark.parametrize(
    "more",
    [
        TokenDelta(request_id="r", token_ids=[2], finish_reason="length"),
        TokenDelta(request_id="r", token_ids=[2], timings=Timings(0.1, 0.2)),
        TokenDelta(request_id="r", token_ids=[2], cached_tokens=0),
        TokenDelta(request_id="r", token_ids=[2], kv_source="recomputed"),
        TokenDelta(request_id="r", token_ids=[2], prompt_logprobs=[None]),
        TokenDelta(request_id="r", token_ids=[2], serving_path="unified"),
        TokenDelta(request_id="r"),
    ],
)
def test_what_says_more_than_tokens_goes_to_the_reader(more: TokenDelta) -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client()
        reader = await parked(stream, client)
        stream.push([delta(1)])
        stream.push([delta(5, choice=1), more])
        assert await reader == [delta(1), delta(5, choice=1), more]
        assert client.got == [1]

    run(scenario)


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize(("more", "goes_ahead"), [(0, True), (1, False)])
def test_a_step_too_large_to_be_held_goes_to_the_reader(others: int, more: int, goes_ahead: bool) -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client()
        reader = await parked(stream, client)
        fits = MAX_CARRIED_BYTES // 112
        large = TokenDelta(request_id="r", token_ids=[7] * (fits - others + more))
        stream.push([large, *[delta(8)] * others])
        await asyncio.sleep(0)
        assert (len(client.got), reader.done()) == ((fits, False) if goes_ahead else (0, True))
        reader.cancel()

    run(scenario)


def test_a_step_without_deltas_is_none() -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client()
        reader = await parked(stream, client)
        assert stream.push([])
        stream.push([delta(1, finished=True)])
        assert stream.push([])
        assert await reader == [delta(1, finished=True)]
        assert await stream.next(client.carry) is None

    run(scenario)


def test_nothing_overtakes_what_the_reader_has_yet_to_take() -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client(Carried.NO)
        reader = await parked(stream, client)
        stream.push([delta(1)])
        stream.push([delta(2)])
        assert await reader == [delta(1)]
        stream.push([delta(3)])
        assert await stream.next(client.carry) == [delta(2)]
        assert await stream.next(client.carry) == [delta(3)]
        assert client.got == []

    run(scenario)


def test_who_wants_no_more_is_woken_with_all_that_went_ahead() -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client(Carried.YES, Carried.LAST)
        reader = await parked(stream, client)
        stream.push([delta(1)])
        stream.push([delta(2)])
        stream.push([delta(3)])
        assert await reader == [delta(1), delta(2), delta(3)]
        assert client.got == [1, 2]

    run(scenario)


def test_what_went_ahead_is_told_before_the_leg_s_failure() -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client()
        reader = await parked(stream, client)
        stream.push([delta(1)])
        stream.fail(WorkerLostError())
        assert await reader == [delta(1)]
        with pytest.raises(WorkerLostError):
            await stream.next(client.carry)

    run(scenario)


def test_what_went_ahead_of_a_reader_that_leaves_is_told_as_well() -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client()
        reader = await parked(stream, client)
        stream.push([delta(1)])
        stream.push([delta(2)])
        reader.cancel()
        stream.push([delta(3)])
        assert client.got == [1, 2], "from the moment that it is cancelled nothing goes ahead of it"
        await asyncio.wait({reader})
        assert client.untold == [1, 2]
        stream.push([delta(4)])
        assert (client.got, client.untold) == ([1, 2], [1, 2])

    run(scenario)


def test_what_went_ahead_of_a_reader_that_leaves_when_it_is_woken_is_told_as_well() -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client()
        reader = await parked(stream, client)
        stream.push([delta(1)])
        stream.push([delta(2, finished=True)])
        reader.cancel()
        await asyncio.wait({reader})
        assert (client.got, client.untold) == ([1], [1]), "the second the client never had"

    run(scenario)


def test_who_was_told_of_all_hears_nothing_when_it_leaves() -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client()
        reader = await parked(stream, client)
        for token in range(CARRIED_STEPS):
            stream.push([delta(token)])
        await reader
        reader = await parked(stream, client)
        reader.cancel()
        await asyncio.wait({reader})
        assert client.untold == []

    run(scenario)


def test_a_reader_that_left_carries_no_more() -> None:
    async def scenario() -> None:
        stream, client = RequestStream(1, ignore), Client()
        reader = await parked(stream, client)
        reader.cancel()
        await asyncio.wait({reader})
        stream.push([delta(1)])
        assert client.got == []

    run(scenario)
