"""A worker as one request would find it: its load and its share of the prompt, in the units of the costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atomesh.mesh.cluster.snapshot import WorkerSnapshot, can_hand_off
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.placement.costs import StepCosts
from atomesh.mesh.placement.inputs import PlacementInputs

NOTHING = MatchedBlocks()


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """`cached_tokens` of the prompt can be used where they lie, `host_tokens` after them once brought back.

    `queued_tokens` and `queued_quadratic` are the prompts still to be computed, `batch` and `context_tokens`
    the sequences that decode there and what they attend to. `room_tokens` of KV can be had, None where the
    worker does not say; `token_bytes` is the size of a token's KV.
    """

    worker: WorkerSnapshot
    step: StepCosts
    cached_tokens: int
    host_tokens: int
    queued_tokens: int
    queued_quadratic: int
    batch: int
    context_tokens: int
    room_tokens: int | None
    token_bytes: float
    fetched_tokens: int = 0
    fetch_from: WorkerSnapshot | None = None
    fetch_s: float = 0.0

    @property
    def queued_s(self) -> float:
        """What the prompts take that are still to be computed here."""
        step, tokens = self.step, self.queued_tokens
        return (
            step.fixed_s * step.num_chunks(tokens)
            + step.token_s * tokens
            + step.quadratic_s * self.queued_quadratic
        )

    @property
    def ready_tokens(self) -> int:
        """Tokens of the prompt that need not be computed."""
        return self.cached_tokens + self.host_tokens + self.fetched_tokens


def take_seat(worker: WorkerSnapshot, inputs: PlacementInputs) -> Seat:
    request, load, description = inputs.request, worker.load, worker.description
    match = inputs.matches.get(worker.incarnation, NOTHING)
    usable = max(request.num_prompt_tokens - 1, 0)  # the last token is computed in any case
    layout = None if description is None else description.kv_layout
    block_size = request.block_size if description is None else description.model.block_size
    device = min(match.device * block_size, usable)
    held = load.total_blocks - load.free_blocks - load.cached_blocks
    return Seat(
        worker=worker,
        step=inputs.costs.step(worker.incarnation),
        cached_tokens=device,
        host_tokens=min(match.total * block_size, usable) - device,
        queued_tokens=worker.prefill_tokens,
        queued_quadratic=worker.prefill_quadratic,
        batch=_decoding(worker),
        context_tokens=max(worker.context_tokens, held * block_size),
        room_tokens=_room(worker, block_size),
        token_bytes=0.0 if layout is None else layout.block_bytes / layout.block_size,
    )


def best_cached(seats: Sequence[Seat]) -> int:
    return max((seat.cached_tokens + seat.host_tokens for seat in seats), default=0)


def with_fetches(seats: Sequence[Seat], inputs: PlacementInputs) -> list[Seat]:
    """Each seat that gets more of the prompt sooner from the best holder than by computing it, with that."""
    if not inputs.rules.may_fetch or not seats:
        return list(seats)
    holder = max(seats, key=lambda seat: seat.cached_tokens)
    return [_with_fetch(seat, holder, inputs) for seat in seats]


def _with_fetch(seat: Seat, holder: Seat, inputs: PlacementInputs) -> Seat:
    tokens = holder.cached_tokens - seat.cached_tokens - seat.host_tokens
    if tokens <= 0 or not can_hand_off(holder.worker, seat.worker):
        return seat
    link = inputs.costs.link(holder.worker.incarnation, seat.worker.incarnation)
    fetch_s = link.transfer_s(tokens * seat.token_bytes)
    num_tokens = inputs.request.num_prompt_tokens
    saved_s = seat.step.prefill_s(num_tokens, seat.ready_tokens) - seat.step.prefill_s(
        num_tokens, holder.cached_tokens
    )
    if fetch_s >= saved_s:
        return seat
    return replace(seat, fetched_tokens=tokens, fetch_from=holder.worker, fetch_s=fetch_s)


def _decoding(worker: WorkerSnapshot) -> int:
    """Ours, and those of other gateways, where it is their decode that the worker is there for."""
    others = max(worker.load.running + worker.load.waiting - worker.sequences, 0)
    return worker.decoding + (others if worker.weights.decode else 0)


def _room(worker: WorkerSnapshot, block_size: int) -> int | None:
    """What the pool could give, less what we have sent since it was last heard of."""
    load = worker.load
    if not load.total_blocks:
        return None
    held = (load.total_blocks - load.free_blocks - load.cached_blocks) * block_size
    return load.total_blocks * block_size - max(held, worker.context_tokens)
