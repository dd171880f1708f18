"""One worker in virtual time."""

from typing import TYPE_CHECKING

import pytest

from atomesh.engine.core.scheduler import Scheduler, SchedulerConfig
from atomesh.mesh.placement.costs import StepCosts
from atomesh.planner.simulator.event_loop import EventLoop
from atomesh.planner.simulator.simulated_worker import SimulatedWorker
from atomesh.planner.simulator.trace_tokens import TraceHasher, TraceTokens
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import ModelDescription, WorkerDescription

if TYPE_CHECKING:
    from atomesh.protocol.frames import StepFrame

BLOCK = 4
COSTS = StepCosts(fixed_s=1.0, token_s=0.5, quadratic_s=0.25, context_s=0.5, sequence_s=0.25)
MODEL = ModelDescription(
    name="m",
    path="",
    architecture="",
    dtype="",
    vocab_size=0,
    max_model_len=100,
    eos_token_ids=(),
    block_size=BLOCK,
    num_blocks=50,
)


class Bench:
    """A worker, and when what came of it."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.frames: list[tuple[float, StepFrame]] = []
        self.worker = SimulatedWorker(
            WorkerDescription(worker_id="w", incarnation="w", pid=1, role="unified", model=MODEL),
            Scheduler(SchedulerConfig(4, 8, 100, BLOCK, 50), TraceHasher(BLOCK)),
            COSTS,
            self.loop,
            lambda _, frame: self.frames.append((self.loop.now(), frame)),
        )

    def send(self, at: float, name: str, block_ids: list[int], num_tokens: int) -> None:
        request = GenerationRequest(
            request_id=name,
            prompt_token_ids=TraceTokens(block_ids, num_tokens, BLOCK).as_prompt(),
            sampling=SamplingSpec(seed=0, max_tokens=1),
        )
        self.loop.at(at, lambda: self.worker.submit(request))

    def answers(self) -> dict[str, tuple[float, int | None]]:
        return {
            delta.request_id: (at, delta.cached_tokens) for at, frame in self.frames for delta in frame.deltas
        }


def test_a_prompt_takes_its_chunks_time() -> None:
    bench = Bench()
    bench.send(2.0, "a", [1, 2, 3], 12)

    bench.loop.run()

    first, second = 1.0 + 4.0 + 0.25 * 64, 1.0 + 2.0 + 0.25 * (144 - 64)
    assert bench.answers() == {"a": (2.0 + first + second, 0)}
    assert bench.worker.busy_s == first + second
    samples = [frame.sample for _, frame in bench.frames]
    assert [(s.seconds, s.prefill_tokens, s.prefill_quadratic) for s in samples if s is not None] == [
        (first, 8, 64),
        (second, 4, 80),
    ]


def test_a_prefix_computed_before_costs_nothing_again() -> None:
    bench = Bench()
    bench.send(0.0, "a", [1, 2], 8)
    bench.send(100.0, "b", [1, 2, 3], 9)

    bench.loop.run()

    assert bench.answers()["b"] == (pytest.approx(100.0 + 1.0 + 0.5 * 9 + 0.25), 8)
    load = bench.worker.scheduler.load()
    assert (load.prefix_cache_hits, load.prefix_cache_queries) == (8, 17)
    bench.worker.scheduler.check_invariants()


def test_what_comes_meanwhile_waits_for_the_step_to_end() -> None:
    bench = Bench()
    bench.send(0.0, "a", [1, 2], 8)
    bench.send(1.0, "b", [3], 1)
    bench.send(2.0, "c", [4], 1)

    bench.loop.run()

    ends = [at for at, _ in bench.frames]
    assert ends == [21.0, 21.0 + 1.0 + 2 * 0.5 + 2 * 0.25]
    assert bench.answers() == {"a": (ends[0], 0), "b": (ends[1], 0), "c": (ends[1], 0)}
