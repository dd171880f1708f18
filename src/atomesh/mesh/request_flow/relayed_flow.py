"""A hand-off between two engines that are not ours.

They move the KV between themselves, and the decode engine samples the first token again, so nothing of what
prefill sampled is for the client. Both legs are sent at once: some engines must meet while prefill computes.
What the one must know of the other, and that it has failed, is their back ends' business.
"""

from msgspec.structs import replace

from atomesh.errors import EngineError
from atomesh.mesh.placement.placement import PrefillDecode
from atomesh.mesh.request_flow.answer import Answer
from atomesh.mesh.request_flow.steps import (
    Abort,
    Arrived,
    Emit,
    Event,
    Flow,
    LegFailed,
    Release,
    SendLeg,
    Wait,
)
from atomesh.protocol.generation import ServingPath, TokenDelta


class OtherLegFailedError(EngineError):
    """This leg of a hand-off had to end because the other failed, which has the reason."""

    def __init__(self) -> None:
        super().__init__("the other engine of the pair has failed on this request; try again")


def is_relayed(pair: PrefillDecode) -> bool:
    told = pair.prefill.description
    return told is not None and told.engine != "atom"


def can_prefill_alone(pair: PrefillDecode) -> bool:
    """Whether its prefill worker answers a request whole, where one token is all that is wanted."""
    told = pair.prefill.description
    return told is None or not told.needs_peer


def relayed_flow(answer: Answer, prefill: SendLeg, decode: SendLeg) -> Flow[LegFailed | ServingPath]:
    """Until decode's first step has been emitted; the path it came by, or what stopped it."""
    yield prefill
    yield decode
    event = yield Wait(prefill)
    if isinstance(event, Arrived):
        facts = event.deltas[0]
        event = yield Wait(decode, prefill)
        if isinstance(event, Arrived):
            path = _path(event.deltas)
            yield Abort(prefill)
            deltas = answer.take(_with_facts(event.deltas, facts), path)
            if answer.is_over:
                yield Release(decode)
            yield Emit(deltas)
            return path
    elif isinstance(event, LegFailed) and isinstance(event.error, OtherLegFailedError):
        event = yield Wait(decode)
    yield Abort(prefill)
    yield Abort(decode)
    return _failure(event)


def _path(deltas: list[TokenDelta]) -> ServingPath:
    return "recomputed" if any(delta.kv_source == "recomputed" for delta in deltas) else "prefill-decode"


def _with_facts(deltas: list[TokenDelta], facts: TokenDelta) -> list[TokenDelta]:
    """What prefill alone knows of the prompt."""
    first, timings = deltas[0], facts.timings
    if timings is not None and first.timings is not None:
        timings = replace(timings, transfer_s=first.timings.transfer_s)
    first = replace(
        first, cached_tokens=facts.cached_tokens, prompt_logprobs=facts.prompt_logprobs, timings=timings
    )
    return [first, *deltas[1:]]


def _failure(event: Event | None) -> LegFailed:
    if isinstance(event, LegFailed):
        return event
    raise AssertionError(f"a hand-off that did not ask for it heard {event!r:.200}")
