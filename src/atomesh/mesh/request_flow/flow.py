"""A request's way through the workers, without a socket: generators that yield actions and receive events.

    request_flow ── place ──▶ unified_flow                                    ──▶ over
         ▲                 ╲▶ prefill_decode_flow: P, the first tokens, then D ──▶ over
         ├── once more, before the first token ◀── failed
         ╰── rest_flow, after it, elsewhere    ◀──╯

The inner flows return None when the answer is complete, and what stopped them otherwise.

Where no worker may do both, the rest is prefill_decode_flow again: P computes the prompt anew, or finds it in
its prefix cache, and D repeats what the client has, unheard, from the first token on. Without such a pair the
answer ends in an error, as it would have without a worker at all.
"""

from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Literal

from msgspec.structs import replace

from atomesh.errors import EngineError, FatalRequestError
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.placement import Placement, PrefillDecode, Rest, Unified
from atomesh.mesh.request_flow.answer import Answer
from atomesh.mesh.request_flow.relayed_flow import can_prefill_alone, is_relayed, relayed_flow
from atomesh.mesh.request_flow.retry import Failures
from atomesh.mesh.request_flow.steps import (
    Abort,
    Arrived,
    Bar,
    Emit,
    Event,
    Flow,
    LegFailed,
    Mint,
    Minted,
    MintFetch,
    Nowhere,
    Place,
    Placed,
    PlaceRest,
    Release,
    SendLeg,
    Wait,
)
from atomesh.protocol.generation import (
    DecodeLeg,
    GenerationRequest,
    PrefillLeg,
    PrefixFetch,
    ServingPath,
    TokenDelta,
)
from atomesh.protocol.ticket import Ticket


@dataclass(frozen=True, slots=True)
class FlowRules:
    """`on_transfer_failure`: whether a decode worker computes KV that did not arrive, or gives up."""

    on_transfer_failure: Literal["recompute", "fail"] = "recompute"


def request_flow(request: GenerationRequest, rules: FlowRules) -> Flow[None]:
    """The whole way of a request. Raises the AtomeshError that the client shall see."""
    answer, failures = Answer(request), Failures()
    while not answer.is_over:
        placement = yield from _place(answer, failures)
        failure = yield from _serve(answer, placement, rules)
        if failure is None:
            continue
        try:
            failures.note(failure, answer)
        except FatalRequestError:
            yield Bar(request)
            raise


def unified_flow(answer: Answer, placed: Unified) -> Flow[LegFailed | None]:
    """All of it on one worker."""
    path: ServingPath = "local-prefill" if placed.is_fallback else "unified"
    request = yield from _with_fetch(answer.next_attempt(), placed, placed.worker)
    leg = SendLeg(placed.worker, request, None)
    yield leg
    return (yield from _stream(answer, leg, path))


def prefill_decode_flow(answer: Answer, pair: PrefillDecode, rules: FlowRules) -> Flow[LegFailed | None]:
    """The first token of each choice from one worker, the others from another; the KV moves between them.

    The client has the first tokens before decode is asked for more: one that stops there never asks.
    """
    request = answer.next_attempt()
    if answer.has_begun:
        answer.hear_again()
        request = answer.rest_of(request)
    if request.sampling.max_tokens <= 1 and can_prefill_alone(pair):
        whole = SendLeg(pair.prefill, (yield from _with_fetch(request, pair, pair.prefill)), None)
        yield whole
        return (yield from _stream(answer, whole, "prefill-decode"))
    ticket = yield from _mint(request, pair)
    if is_relayed(pair):
        return (yield from _relay(answer, pair, request, ticket, rules))
    prefill = SendLeg(
        pair.prefill,
        (yield from _with_fetch(request, pair, pair.prefill)),
        PrefillLeg(ticket=ticket, decode_address=_kv_address(pair.decode)),
    )
    yield prefill
    failure = yield from _first_tokens(answer, prefill)
    if failure is not None or answer.is_over:
        return failure
    leg = DecodeLeg(
        outputs=answer.first_outputs(),
        ticket=ticket,
        prefill_address=_kv_address(pair.prefill),
        on_failure=rules.on_transfer_failure,
    )
    return (yield from _decode(answer, prefill, SendLeg(pair.decode, answer.rest_of(request), leg)))


def _relay(
    answer: Answer, pair: PrefillDecode, request: GenerationRequest, ticket: Ticket, rules: FlowRules
) -> Flow[LegFailed | None]:
    prefill = SendLeg(
        pair.prefill, request, PrefillLeg(ticket=ticket, decode_address=_kv_address(pair.decode))
    )
    leg = DecodeLeg(
        outputs={choice: [] for choice in range(request.n)},
        ticket=ticket,
        prefill_address=_kv_address(pair.prefill),
        on_failure=rules.on_transfer_failure,
    )
    decode = SendLeg(pair.decode, answer.rest_of(request), leg)
    came = yield from relayed_flow(answer, prefill, decode)
    if isinstance(came, LegFailed):
        return came
    return (yield from _stream(answer, decode, came))


def rest_flow(answer: Answer, worker: WorkerSnapshot) -> Flow[LegFailed | None]:
    """What is missing of an answer, from its tokens alone."""
    request = answer.rest_of(answer.next_attempt())
    leg = SendLeg(worker, request, DecodeLeg(outputs=answer.open_outputs()))
    yield leg
    event = yield from _first_step(leg)
    if isinstance(event, LegFailed):
        return event
    yield from _emit(answer, event, "recomputed", leg)
    return (yield from _stream(answer, leg, "recomputed"))


def _serve(answer: Answer, placement: Placement, rules: FlowRules) -> Flow[LegFailed | None]:
    match placement:
        case PrefillDecode():
            return (yield from prefill_decode_flow(answer, placement, rules))
        case Unified(worker) if answer.has_begun:
            return (yield from rest_flow(answer, worker))
        case Unified():
            return (yield from unified_flow(answer, placement))


def _place(answer: Answer, failures: Failures) -> Flow[Placement]:
    if answer.has_begun and failures.last is not None:
        like, choices = failures.last.leg.worker, len(answer.outputs)
        rest = Rest(like, answer.num_tokens, choices, answer.request)
        event = yield PlaceRest(rest, failures.excluded)
    else:
        is_charged = failures.last is not None and not failures.last.is_lost
        event = yield Place(answer.request, failures.excluded, is_charged)
    match event:
        case Placed(placement):
            return placement
        case Nowhere(error):
            raise error if failures.last is None else failures.final_error(answer)
        case _:
            raise _unexpected(event)


def _mint(request: GenerationRequest, pair: PrefillDecode) -> Flow[Ticket]:
    match (yield Mint(request.request_id, request.n, pair.prefill, pair.decode)):
        case Minted(ticket):
            return ticket
        case event:
            raise _unexpected(event)


def _with_fetch(
    request: GenerationRequest, placement: Placement, borrower: WorkerSnapshot
) -> Flow[GenerationRequest]:
    """The request as the worker gets it that computes the prompt: told whom to ask for a part of it."""
    lender = placement.fetch_from
    if lender is None:
        return request
    match (yield MintFetch(request.request_id, lender, borrower)):
        case Minted(ticket):
            fetch = PrefixFetch(
                ticket=ticket,
                address=_kv_address(lender),
                num_tokens=placement.cached_tokens,
                patience_s=placement.patience_s,
            )
            return replace(request, fetch=fetch)
        case event:
            raise _unexpected(event)


def _wait(leg: SendLeg, source: SendLeg | None = None) -> Flow[Arrived | LegFailed]:
    event = yield Wait(leg, source)
    return event if isinstance(event, Arrived) else _failure(event)


def _stream(answer: Answer, leg: SendLeg, path: ServingPath) -> Flow[LegFailed | None]:
    """Until the answer is over or the leg fails: what every token passes through."""
    if answer.is_over:
        return None
    event = yield Wait(leg)
    while isinstance(event, Arrived):
        deltas = answer.take(event.deltas, path)
        if answer.is_over:
            yield from _emit_last(deltas, leg)
            return None
        event = yield Emit(deltas, leg, bool(deltas) and answer.is_steady)  # something has told the path
    return _failure(event)


def _emit(answer: Answer, arrived: Arrived, path: ServingPath, leg: SendLeg) -> Flow[None]:
    deltas = answer.take(arrived.deltas, path)
    if answer.is_over:
        yield from _emit_last(deltas, leg)
    else:
        yield Emit(deltas)


def _emit_last(deltas: list[TokenDelta], leg: SendLeg) -> Flow[None]:
    """The leg is let go before the client has the end of the answer: who has that listens no more."""
    yield Release(leg)
    yield Emit(deltas)


def _first_tokens(answer: Answer, prefill: SendLeg) -> Flow[LegFailed | None]:
    """All first tokens at once, so that a failure between them can still be tried again."""
    arrived = Arrived([])
    while len({delta.choice for delta in arrived.deltas}) < answer.request.n:
        event = yield from _first_step(prefill)
        if isinstance(event, LegFailed):
            return event
        arrived = Arrived(arrived.deltas + event.deltas)
    yield from _emit(answer, arrived, "prefill-decode", prefill)
    return None


def _decode(answer: Answer, prefill: SendLeg, decode: SendLeg) -> Flow[LegFailed | None]:
    """What prefill still holds for the hand-off is let go when decode has no more need of it.

    A frozen prefill worker keeps its connections: where decode may compute the KV itself, it is told to.
    """
    yield decode
    may_recompute = isinstance(decode.leg, DecodeLeg) and decode.leg.on_failure == "recompute"
    event = yield from _first_step(decode, prefill if may_recompute else None)
    if isinstance(event, LegFailed):
        yield Abort(prefill)
        yield Abort(decode)
        return event
    sources = {delta.kv_source for delta in event.deltas}
    path: ServingPath = "recomputed" if "recomputed" in sources else "prefill-decode"
    yield Release(prefill) if sources == {"transferred"} else Abort(prefill)
    yield from _emit(answer, event, path, decode)
    return (yield from _stream(answer, decode, path))


def _first_step(leg: SendLeg, source: SendLeg | None = None) -> Flow[Arrived | LegFailed]:
    """A leg's first; an error in its place that is not the engine's own is a refusal."""
    event = yield from _wait(leg, source)
    if isinstance(event, LegFailed) and not event.is_lost and not isinstance(event.error, EngineError):
        return replaced(event, is_refusal=True)
    return event


def _kv_address(worker: WorkerSnapshot) -> str:
    if worker.description is None or worker.description.kv_address is None:
        raise AssertionError("a worker without a KV plane was placed in a pair")
    return worker.description.kv_address


def _failure(event: Event | None) -> LegFailed:
    if isinstance(event, LegFailed):
        return event
    raise _unexpected(event)


def _unexpected(event: Event | None) -> AssertionError:
    return AssertionError(f"a flow that did not ask for it heard {event!r:.200}")
