"""What a generating request's record says of its answer."""

from collections.abc import Sequence

from atomesh.frontend.generation import Generation
from atomesh.frontend.http.server_timing import slowest_path
from atomesh.observability.request_record import Asked, RequestRecord


def note_plan(
    record: RequestRecord, model: str, generations: Sequence[Generation], *, is_streamed: bool
) -> None:
    """What is settled before anything runs."""
    first = generations[0].request
    sampling = first.sampling
    record.model = model
    record.answer_id = first.request_id.rpartition("-")[0]
    record.is_streamed = is_streamed
    record.prompts = len(generations)
    record.prompt_tokens = sum(len(generation.request.prompt_token_ids) for generation in generations)
    record.asked = Asked(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        choices=first.n,
    )


def note_answer(record: RequestRecord, generations: Sequence[Generation]) -> None:
    """As far as it has come, however it ended."""
    record.completion_tokens = sum(generation.completion_tokens for generation in generations)
    record.cached_tokens = sum(generation.cached_tokens for generation in generations)
    record.finish_reasons = [
        reason for generation in generations for _, reason in sorted(generation.finish_reasons.items())
    ]
    record.serving_path = slowest_path(generations)
