"""What a step counts as."""

from atomesh.engine.core.batch import ScheduledBatch, ScheduledSequence
from atomesh.engine.core.step_measure import measure
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.step_sample import StepSample

SPEC = SamplingSpec(seed=0, max_tokens=1)


def scheduled(start: int, num_tokens: int) -> ScheduledSequence:
    return ScheduledSequence(0, SPEC, [1] * num_tokens, start, [], (), [], [])


def test_prompt_chunks_and_decodes_are_counted_apart() -> None:
    batch = ScheduledBatch((scheduled(0, 4), scheduled(10, 5), scheduled(6, 1), scheduled(99, 1)))

    assert measure(batch, 0.5) == StepSample(
        seconds=0.5,
        prefill_tokens=4 + 5,
        prefill_quadratic=4**2 + 15**2 - 10**2,
        context_tokens=7 + 100,
        batch=2,
    )
