"""What a batch asks of the machine, as the cost model counts it."""

from atomesh.engine.core.batch import ScheduledBatch
from atomesh.protocol.step_sample import StepSample


def measure(batch: ScheduledBatch, seconds: float) -> StepSample:
    """The sample of a step that took `seconds`; a sequence with one token to compute decodes."""
    prompts = [one for one in batch.sequences if len(one.token_ids) > 1]
    decodes = [one for one in batch.sequences if len(one.token_ids) == 1]
    return StepSample(
        seconds=seconds,
        prefill_tokens=sum(len(one.token_ids) for one in prompts),
        prefill_quadratic=sum(one.end**2 - one.start**2 for one in prompts),
        context_tokens=sum(one.end for one in decodes),
        batch=len(decodes),
    )
