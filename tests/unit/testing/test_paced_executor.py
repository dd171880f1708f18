"""What a paced step takes."""

from atomesh.engine.core.scheduler import Scheduler, SchedulerConfig
from atomesh.protocol.block_hash import BlockHasher
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.paced_executor import PacedExecutor

LIMITS = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, block_size=4, num_blocks=64
)


def test_a_step_sleeps_for_what_is_not_cached() -> None:
    slept: list[float] = []
    executor = PacedExecutor(lambda work: 0.5 + work.prefill_tokens, slept.append)
    scheduler = Scheduler(LIMITS, BlockHasher(b"s", "m", 4))

    for number in range(2):
        prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
        scheduler.add(
            GenerationRequest(
                request_id=str(number), prompt_token_ids=prompt, sampling=SamplingSpec(seed=0, max_tokens=1)
            ),
            0.0,
        )
        batch = scheduler.schedule(0.0)
        [delta] = scheduler.update(batch, executor.execute(batch), 0.0)
        assert list(delta.token_ids) == [0]

    assert slept == [9.5, 0.5]  # the second time two blocks lie there, and one token is a decode
    assert executor.busy_s == 10.0
