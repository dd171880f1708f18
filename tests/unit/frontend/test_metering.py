"""When an answer's steps and ends are told: after the bytes are away, each end once, by its reason."""

import asyncio

import pytest

from atomesh.errors import EngineError
from atomesh.frontend.generation import ChoicePiece, Generation, StepPieces, TextOptions
from atomesh.frontend.metering import Metering
from atomesh.observability.metrics import FINISH_REASONS, TTFT_PARTS, FrontendMetrics
from atomesh.protocol.generation import GenerationRequest, Timings
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.manual_clock import ManualClock

LABELS = {"model_name": "m", "engine": "0"}


class Bench:
    """Two prompts of one call, each with `n` choices."""

    def __init__(self, n: int = 1) -> None:
        self.metrics, self.clock = FrontendMetrics(), ManualClock()
        requests = [
            GenerationRequest(
                request_id=f"a-{i}",
                prompt_token_ids=[1, 2, 3],
                sampling=SamplingSpec(seed=0, max_tokens=9),
                n=n,
            )
            for i in range(2)
        ]
        self.generations = [Generation(one, TextOptions(), ByteTokenizer(), None) for one in requests]
        self.metering = Metering(self.metrics.for_model("m"), self.clock, self.clock.now(), self.generations)

    def step(self, prompt: int, *finishes: str | None) -> StepPieces:
        pieces = [
            ChoicePiece(choice, "x", [65], [], is_first=False, finish_reason=finish)
            for choice, finish in enumerate(finishes)
        ]
        self.generations[prompt].completion_tokens += len(pieces)
        return StepPieces(prompt, pieces)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {**LABELS, **labels})

    def finishes(self) -> dict[str, float]:
        counts = {
            one: self.value("vllm:request_success_total", finished_reason=one) for one in FINISH_REASONS
        }
        return {reason: count for reason, count in counts.items() if count}


def test_a_prompt_s_end_is_its_own_and_the_first_token_counts_when_it_was_written() -> None:
    bench = Bench()

    async def answer() -> None:
        async with bench.metering.until_end():
            first = bench.step(0, None)
            bench.clock.advance(1.0)  # written for as long as that
            bench.metering.wrote(first)
            bench.clock.advance(1.0)
            bench.metering.wrote(bench.step(0, "stop"))
            bench.clock.advance(1.0)
            bench.metering.wrote(bench.step(1, "length"))

    asyncio.run(answer())
    assert bench.value("vllm:time_to_first_token_seconds_sum") == 1.0 + 3.0
    assert bench.value("vllm:e2e_request_latency_seconds_sum") == 2.0 + 3.0
    assert bench.value("vllm:request_generation_tokens_sum") == 3.0
    assert bench.finishes() == {"stop": 1.0, "length": 1.0}


@pytest.mark.parametrize(
    ("failure", "reason"), [(EngineError("broken"), "error"), (asyncio.CancelledError(), "abort")]
)
def test_what_is_not_finished_when_it_fails_ends_for_that_reason(failure: BaseException, reason: str) -> None:
    bench = Bench(n=2)

    async def answer() -> None:
        async with bench.metering.until_end():
            bench.metering.wrote(bench.step(0, "stop", "stop"))
            bench.metering.wrote(bench.step(1, "stop", None))
            raise failure

    with pytest.raises(type(failure)):
        asyncio.run(answer())
    assert bench.finishes() == {"stop": 3.0, reason: 1.0}
    assert bench.value("vllm:e2e_request_latency_seconds_count") == 1.0


def test_parts_sum_to_the_first_token_s_time_whatever_an_engine_says() -> None:
    for said in (Timings(0.25, 0.5, 0.125), Timings(5.0, 0.5), Timings(0.5, 7.0, 9.0), Timings(-1.0, 0.0)):
        bench = Bench()
        bench.generations[0].timings = said
        bench.clock.advance(1.0)
        bench.metering.wrote(bench.step(0, None))
        parts = [
            bench.value("atomesh_time_to_first_token_part_seconds_sum", part=part) for part in TTFT_PARTS
        ]
        assert sum(parts) == bench.value("vllm:time_to_first_token_seconds_sum") == 1.0
        assert min(parts) >= 0.0
