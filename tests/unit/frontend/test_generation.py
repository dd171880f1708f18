import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from atomesh.errors import AtomeshError, ContextLengthError, EngineError, RateLimitError
from atomesh.frontend.generation import ChoicePiece, Generation, StepPieces, TextOptions, merge
from atomesh.frontend.token_service import Carried, Carry
from atomesh.protocol.generation import GenerationRequest, Timings, TokenDelta, TokenLogprobs, WireError
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.byte_tokenizer import END, ByteTokenizer


class Recorded:
    """Gives recorded steps; remembers whether it was closed before its end."""

    def __init__(self, *steps: list[TokenDelta]) -> None:
        self._steps = steps
        self.was_cut = False

    async def generate(
        self, _request: GenerationRequest, carry: Carry | None = None
    ) -> AsyncGenerator[list[TokenDelta], None]:
        try:
            for step in self._steps:
                yield step
        except GeneratorExit:
            self.was_cut = True
            raise


def delta(token_ids: bytes | list[int], **fields: Any) -> TokenDelta:
    return TokenDelta(request_id="r", token_ids=list(token_ids), **fields)


def generation(service: Any, n: int = 1, options: TextOptions | None = None) -> Generation:
    request = GenerationRequest(
        request_id="r", prompt_token_ids=[1, 2], sampling=SamplingSpec(seed=1, max_tokens=9), n=n
    )
    return Generation(request, options or TextOptions(), ByteTokenizer(), service)


async def collect(run: Generation) -> list[ChoicePiece]:
    return [piece async for step in run.steps() for piece in step.pieces]


def test_pieces_carry_text_ids_and_the_end() -> None:
    start = {"cached_tokens": 7, "timings": Timings(0.1, 0.2), "prompt_logprobs": [None]}
    run = generation(Recorded([delta(b"ab", **start)], [delta([99, END], finish_reason="stop")]))
    pieces = asyncio.run(collect(run))
    assert pieces == [
        ChoicePiece(0, "ab", [97, 98], [], True),
        ChoicePiece(0, "c", [99, END], [], False, "stop", None),
    ]
    assert (run.completion_tokens, run.cached_tokens, run.timings) == (4, 7, Timings(0.1, 0.2))
    assert run.prompt_logprobs == [None]


def test_a_delta_without_a_token_is_no_first_piece() -> None:
    run = generation(Recorded([delta([], cached_tokens=2)], [delta(b"a", finish_reason="length")]))
    assert asyncio.run(collect(run)) == [ChoicePiece(0, "a", [97], [], True, "length", None)]
    assert run.cached_tokens == 2


def test_an_answer_without_tokens_ends_all_the_same() -> None:
    run = generation(Recorded([delta([], finish_reason="length")]))
    assert asyncio.run(collect(run)) == [ChoicePiece(0, "", [], [], True, "length", None)]


def test_a_stop_string_cuts_tokens_and_logprobs_and_ends_the_request() -> None:
    logprobs = [TokenLogprobs(token, -1.0, 1, []) for token in b"aXYb"]
    service = Recorded([delta(b"aXYb", logprobs=logprobs)], [delta(b"never")])
    run = generation(service, options=TextOptions(stop=("XY",)))
    assert asyncio.run(collect(run)) == [ChoicePiece(0, "a", [*b"aXY"], logprobs[:3], True, "stop", "XY")]
    assert run.completion_tokens == 3
    assert service.was_cut


def test_a_stop_token_s_text_is_left_out_unless_asked_for() -> None:
    for include, text in ((False, "a"), (True, "a.")):
        steps = [delta(b"a.", finish_reason="stop", stop_token_id=46)]
        (piece,) = asyncio.run(
            collect(generation(Recorded(steps), options=TextOptions(include_stop=include)))
        )
        assert (piece.text, piece.stop_reason, piece.token_ids) == (text, 46, [*b"a."])


def test_a_choice_that_stopped_is_heard_no_more_while_the_other_goes_on() -> None:
    service = Recorded(
        [delta(b"X"), delta(b"a", choice=1)],
        [delta(b"b"), delta(b"c", choice=1)],
        [delta(b"d"), delta(b"e", choice=1, finish_reason="length")],
    )
    run = generation(service, n=2, options=TextOptions(stop=("X",)))
    pieces = asyncio.run(collect(run))
    assert [(piece.choice, piece.text, piece.finish_reason) for piece in pieces] == [
        (0, "", "stop"),
        (1, "a", None),
        (1, "c", None),
        (1, "e", "length"),
    ]
    assert run.completion_tokens == 4


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (WireError("ContextLengthError", "too long", "prompt"), ContextLengthError),
        (WireError("EngineError", "broken"), EngineError),
        (WireError("annotations", "odd"), EngineError),
        (WireError("NoSuchError", "odd"), EngineError),
        (None, EngineError),
    ],
)
def test_an_error_from_the_engine_is_raised_as_its_own_class(error: WireError | None, kind: type) -> None:
    run = generation(Recorded([delta([], finish_reason="error", error=error)]))
    with pytest.raises(AtomeshError) as caught:
        asyncio.run(collect(run))
    assert type(caught.value) is kind
    if error is not None:
        assert (caught.value.message, caught.value.param) == (error.message, error.param)


def test_an_answer_that_ends_early_is_an_error() -> None:
    with pytest.raises(EngineError, match="before its answer was complete"):
        asyncio.run(collect(generation(Recorded([delta(b"a")]))))


async def steps_of(prompt: int, text: str, closed: list[str], error: AtomeshError | None = None) -> Any:
    try:
        for letter in text:
            await asyncio.sleep(0)
            yield StepPieces(prompt, [ChoicePiece(0, letter, [], [], False)])
        if error is not None:
            raise error
        if text.isupper():
            await asyncio.Event().wait()
    finally:
        closed.append(text)


def test_a_merge_keeps_each_stream_s_order() -> None:
    async def run() -> list[StepPieces]:
        return [
            step async for step in merge([steps_of(0, "abc", []), steps_of(1, "", []), steps_of(2, "xy", [])])
        ]

    steps = asyncio.run(run())
    assert [s.pieces[0].text for s in steps if s.prompt == 0] == ["a", "b", "c"]
    assert [s.pieces[0].text for s in steps if s.prompt == 2] == ["x", "y"]


def test_the_first_failure_ends_all_streams_of_a_merge() -> None:
    closed: list[str] = []

    async def run() -> None:
        async for _ in merge([steps_of(0, "AB", closed), steps_of(1, "b", closed, RateLimitError("full"))]):
            pass

    with pytest.raises(RateLimitError):
        asyncio.run(run())
    assert sorted(closed) == ["AB", "b"]


@pytest.mark.parametrize("texts", [["A"], ["A", "B"]])
def test_a_closed_merge_closes_its_streams(texts: list[str]) -> None:
    closed: list[str] = []

    async def run() -> None:
        async with aclosing(merge([steps_of(0, text, closed) for text in texts])) as steps:
            async for _ in steps:
                break

    asyncio.run(run())
    assert sorted(closed) == texts


class Ahead:
    """A service as the mesh is one: after the first step, what may go ahead does, and is told at the end."""

    def __init__(self, *steps: list[TokenDelta]) -> None:
        self._steps = steps
        self.carried: list[Carried] = []

    async def generate(
        self, _request: GenerationRequest, carry: Carry | None = None
    ) -> AsyncGenerator[list[TokenDelta], None]:
        yield self._steps[0]
        told: list[TokenDelta] = []
        for step in self._steps[1:-1]:
            assert carry is not None
            self.carried.append(carry.take(step))
            told += step
            if self.carried[-1] is not Carried.YES:
                yield told
                told = []
        yield told + self._steps[-1]


class Taken:
    """A delivery that keeps what it took."""

    def __init__(self) -> None:
        self.is_free = True
        self.steps: list[StepPieces] = []

    def deliver(self, step: StepPieces) -> None:
        self.steps.append(step)


def run_ahead(run: Generation, taken: Taken) -> list[ChoicePiece]:
    async def collect_rest() -> list[ChoicePiece]:
        async with aclosing(run.steps(taken)) as steps:
            return [piece async for step in steps for piece in step.pieces]

    return asyncio.run(collect_rest())


def test_what_was_delivered_comes_no_second_time() -> None:
    service, taken = (
        Ahead(*([delta(bytes([c]))] for c in b"abc"), [delta(b"d", finish_reason="length")]),
        Taken(),
    )
    run = generation(service)
    rest = run_ahead(run, taken)
    assert [piece.text for piece in rest] == ["a", "d"]
    assert [piece for step in taken.steps for piece in step.pieces] == [
        ChoicePiece(0, "b", [98], [], False),
        ChoicePiece(0, "c", [99], [], False),
    ]
    assert (run.completion_tokens, run.finish_reasons) == (4, {0: "length"})
    assert service.carried == [Carried.YES, Carried.YES]


def test_a_delivery_that_is_not_free_is_passed_over() -> None:
    service, taken = Ahead([delta(b"a")], [delta(b"b")], [delta(b"c", finish_reason="stop")]), Taken()
    taken.is_free = False
    assert [piece.text for piece in run_ahead(generation(service), taken)] == ["a", "b", ""]
    assert (taken.steps, service.carried) == ([], [Carried.NO])


def test_a_stop_string_that_is_delivered_ends_the_request() -> None:
    service, taken = Ahead([delta(b"a")], [delta(b"X")], [delta(b"Yb")], [delta(b"never")]), Taken()
    run = generation(service, options=TextOptions(stop=("XY",)))
    assert [piece.text for piece in run_ahead(run, taken)] == ["a"]
    assert [piece for step in taken.steps for piece in step.pieces] == [
        ChoicePiece(0, "", [88], [], False),
        ChoicePiece(0, "", [89], [], False, "stop", "XY"),
    ]
    assert service.carried == [Carried.YES, Carried.LAST]
    assert run.finish_reasons == {0: "stop"}


def test_what_comes_for_a_choice_that_is_over_or_never_was_is_not_delivered() -> None:
    first = [delta(b"a"), delta(b"b", choice=1, finish_reason="length")]
    for choice in (1, 2, -1):
        service, taken = Ahead(first, [delta(b"c", choice=choice)], [delta(b"d")]), Taken()
        run = generation(service, n=2)
        with pytest.raises((EngineError, IndexError)):
            run_ahead(run, taken)
        assert (taken.steps, service.carried) == ([], [Carried.NO])


def test_a_stop_string_ends_a_choice_amid_what_one_step_brings_for_it() -> None:
    step = [delta(b"XY"), delta(b"Z"), delta(b"more", choice=1)]
    last = delta(b"c", choice=1, finish_reason="length")
    service, taken = Ahead([delta(b"a"), delta(b"b", choice=1)], step, [last]), Taken()
    run = generation(service, n=2, options=TextOptions(stop=("XY",)))
    assert [piece.text for piece in run_ahead(run, taken)] == ["a", "b", "c"]
    assert [piece for took in taken.steps for piece in took.pieces] == [
        ChoicePiece(0, "", [88, 89], [], False, "stop", "XY"),
        ChoicePiece(1, "more", [*b"more"], [], False),
    ]
    assert (run.completion_tokens, run.finish_reasons) == (9, {0: "stop", 1: "length"})


@pytest.mark.parametrize("fault", [LookupError("a bug"), EngineError("no such text")])
def test_a_fault_of_the_delivery_ends_the_request_and_reaches_no_service(fault: Exception) -> None:
    class Broken(Taken):
        def deliver(self, step: StepPieces) -> None:
            raise fault

    service = Ahead([delta(b"a")], [delta(b"b")], [delta(b"c")], [delta(b"d", finish_reason="length")])
    with pytest.raises(type(fault)) as caught:
        run_ahead(generation(service), Broken())
    assert caught.value is fault
    assert service.carried == [Carried.LAST]
