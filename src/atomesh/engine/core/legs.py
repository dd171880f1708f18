"""What a request's leg means here: which choices are open, and how far each of them is."""

from collections.abc import Callable

from msgspec.structs import replace

from atomesh.engine.core.request import RequestState, TokenSequence
from atomesh.errors import InvalidRequestError
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg


def request_of_leg(request: GenerationRequest, leg: Leg | None) -> GenerationRequest:
    """The request as this leg has to serve it: the prompt's own log-probabilities come from prefill."""
    if not isinstance(leg, DecodeLeg) or request.sampling.prompt_logprobs is None:
        return request
    return replace(request, sampling=replace(request.sampling, prompt_logprobs=None))


def check_leg(request: GenerationRequest, leg: Leg | None, max_model_len: int) -> None:
    """Raises InvalidRequestError for a decode leg that does not go with its request."""
    if not isinstance(leg, DecodeLeg):
        return
    if not leg.outputs or not leg.outputs.keys() <= set(range(request.n)):
        raise InvalidRequestError(
            f"the open choices are {sorted(leg.outputs)}; name at least one, from 0 to {request.n - 1}",
            param="outputs",
        )
    limit = min(request.sampling.max_tokens, max_model_len - len(request.prompt_token_ids))
    for choice, token_ids in leg.outputs.items():
        if len(token_ids) >= limit:
            raise InvalidRequestError(
                f"choice {choice} already has {len(token_ids)} tokens and may have {limit}; it has ended",
                param="outputs",
            )
        if leg.ticket is not None and len(token_ids) != 1:
            raise InvalidRequestError(
                f"choice {choice} has {len(token_ids)} tokens; KV that is transferred goes on from the first",
                param="outputs",
            )


def sequences_of(
    state: RequestState, rank: tuple[int, int], next_sequence_id: Callable[[], int]
) -> list[TokenSequence]:
    """One sequence that stands for all choices, or in a decode leg one for each open choice."""
    request, leg = state.request, state.leg
    lines: list[tuple[tuple[int, ...], list[int]]]
    if isinstance(leg, DecodeLeg):
        lines = [((choice,), token_ids.copy()) for choice, token_ids in leg.outputs.items()]
    else:
        lines = [(tuple(range(request.n)), [])]
    return [
        TokenSequence(
            sequence_id=next_sequence_id(),
            request=state,
            choices=choices,
            order_key=(*rank, choices[0]),
            sampling=request.sampling,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=output_token_ids,
            kv_source="recomputed" if isinstance(leg, DecodeLeg) else None,
        )
        for choices, output_token_ids in lines
    ]
