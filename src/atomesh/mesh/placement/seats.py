"""A worker as one request would find it: its load and its share of the prompt, in the units of the costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from atomesh.mesh.cluster.snapshot import WorkerSnapshot, can_hand_off
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.placement.costs import StepCosts
from atomesh.mesh.placement.inputs import PlacementInputs
from atomesh.protocol.generation import LEAST_PATIENCE_S

NOTHING = MatchedBlocks()
ASK_S = 2e-3  # until two engines, neither of them computing, have heard each other


@dataclass(slots=True, eq=False)  # a frozen one takes several times as long: there may be hundreds
class Seat:
    """`cached_tokens` of the prompt lie there, or will once what was sent there is done. Those that do when
    the prompt's turn comes can be used, `host_tokens` after them once brought back, and some more once
    `fetch_from` has sent them: `ready_tokens` in all need not be computed. Others may fetch `lendable_tokens`
    from here.

    `queued_tokens` of prompts are still to be computed, which takes `queued_s`; `batch` is the sequences that
    decode there, `context_tokens` what they attend to. `room_tokens` of KV can be had, None where the worker
    does not say; `token_bytes` is the size of a token's KV. A fetch is expected to take `fetch_s`, and
    waited for `patience_s` at most. Nobody changes a seat.
    """

    worker: WorkerSnapshot
    step: StepCosts
    cached_tokens: int
    host_tokens: int
    ready_tokens: int
    queued_tokens: int
    queued_s: float
    batch: int
    context_tokens: int
    room_tokens: int | None
    token_bytes: float
    lendable_tokens: int = 0
    fetch_from: WorkerSnapshot | None = None
    fetch_s: float = 0.0
    patience_s: float = 0.0


def take_seat(worker: WorkerSnapshot, inputs: PlacementInputs) -> Seat:
    load, description, request = worker.load, worker.description, inputs.request
    incarnation, block_size, token_bytes = "", request.block_size, 0.0
    if description is not None:
        incarnation, block_size = description.incarnation, description.model.block_size
        if description.kv_layout is not None:
            token_bytes = description.kv_layout.block_bytes / description.kv_layout.block_size
    usable = request.num_prompt_tokens - 1  # the last token is computed in any case
    match = inputs.matches.get(incarnation, NOTHING)
    device = min(match.device * block_size, usable)
    step = inputs.costs.step(incarnation)
    told = min((match.device - match.promised) * block_size, usable) if match.promised else device
    found = min(told + _kept(match.promised, step, worker, block_size), device) if match.promised else device
    ready = min((match.device + match.host) * block_size, usable) if match.host else found
    held = (load.total_blocks - load.free_blocks - load.cached_blocks) * block_size
    context = held if held > worker.context_tokens else worker.context_tokens
    return Seat(
        worker,
        step,
        device,
        ready - found,
        ready,
        worker.prefill_tokens,
        _queued_s(step, worker),
        _decoding(worker),
        context,
        load.total_blocks * block_size - context if load.total_blocks else None,
        token_bytes,
        told,
    )


def _kept(promised: int, step: StepCosts, worker: WorkerSnapshot, block_size: int) -> int:
    """Tokens of promised blocks that are in the prefix cache when the prompt is looked up there.

    That is before the step that begins it, the first that those queued before it leave room in. What others
    compute in this step, or have fetched, is not there yet, and is computed, or fetched, a second time. Where
    every prompt has been answered, all of it is there and has only not been told.
    """
    if not worker.prefill_tokens:
        return promised * block_size
    at_work = min(worker.prefill_tokens - worker.unbegun_tokens, step.chunk_tokens)
    later = worker.prefill_tokens - at_work
    computed = at_work + later - later % step.chunk_tokens
    return min(promised, computed // block_size) * block_size


def with_fetches(seats: Sequence[Seat], holders: Sequence[Seat], inputs: PlacementInputs) -> Sequence[Seat]:
    """Each seat that gets more of the prompt sooner from the best holder than by computing it, with that.

    Of several holders that are as good the one is asked that will listen first.
    """
    if not inputs.rules.may_fetch or not inputs.matches:
        return seats
    most = max([seat.lendable_tokens for seat in holders], default=0)
    if not most:
        return seats
    holder = min((seat for seat in holders if seat.lendable_tokens == most), key=_listens_in_s)
    asked_s = ASK_S + _listens_in_s(holder)
    return [_with_fetch(seat, holder, asked_s, inputs) for seat in seats]


def _with_fetch(seat: Seat, holder: Seat, asked_s: float, inputs: PlacementInputs) -> Seat:
    tokens = holder.lendable_tokens - seat.ready_tokens
    if tokens <= 0 or not can_hand_off(holder.worker, seat.worker):
        return seat
    link = inputs.costs.link(holder.worker.incarnation, seat.worker.incarnation)
    fetch_s = asked_s + link.transfer_s(tokens * seat.token_bytes)
    num_tokens = inputs.request.num_prompt_tokens
    cost = seat.step.prefill_s
    saved_s = cost(num_tokens, seat.ready_tokens) - cost(num_tokens, holder.lendable_tokens)
    if not isfinite(saved_s) or fetch_s > saved_s * (1.0 - inputs.weights.fetch_margin):
        return seat
    return replace(
        seat,
        ready_tokens=holder.lendable_tokens,
        fetch_from=holder.worker,
        fetch_s=fetch_s,
        patience_s=max(saved_s, LEAST_PATIENCE_S),
    )


def _listens_in_s(holder: Seat) -> float:
    """An engine listens between two steps: on average half of one passes before."""
    step, tokens = holder.step, min(holder.queued_tokens, holder.step.chunk_tokens)
    if not tokens and not holder.batch:
        return 0.0
    return (step.fixed_s + step.token_s * tokens + step.decoding_s(holder.context_tokens, holder.batch)) / 2


def _queued_s(step: StepCosts, worker: WorkerSnapshot) -> float:
    tokens = worker.prefill_tokens
    if not tokens:
        return 0.0
    fixed_s = step.fixed_s * step.num_chunks(tokens)
    return fixed_s + step.token_s * tokens + step.quadratic_s * worker.prefill_quadratic


def _decoding(worker: WorkerSnapshot) -> int:
    """Ours, and those of other gateways, where it is their decode that the worker is there for."""
    others = worker.load.running + worker.load.waiting - worker.sequences
    return worker.decoding + others if others > 0 and worker.weights.decode else worker.decoding
