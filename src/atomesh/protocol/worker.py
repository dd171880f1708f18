"""What a worker says of itself: once at hello, then its load with every step."""

from typing import Literal

import msgspec

from atomesh.protocol.bounds import (
    Blocks,
    BlockSize,
    Count,
    CountsByOutcome,
    Length,
    Name,
    Path,
    Seconds,
    TokenIds,
    Tokens,
    Weight,
    Words,
)
from atomesh.protocol.kv_layout import KVLayout
from atomesh.protocol.roofline import Roofline

Role = Literal["prefill", "decode", "unified", "parked"]


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The model as served by a worker; the frontend needs no other knowledge of it.

    `path` is where the model's files lie on the worker's host, for a gateway on the same host to read the
    tokenizer from. `max_model_len` is in tokens, prompt and answer together, and always fits the KV pool.
    `kv_bytes` is the size of that pool, 0 where the worker does not say.
    """

    name: Name
    path: Path
    architecture: Words
    dtype: Words
    vocab_size: Tokens
    max_model_len: Length
    eos_token_ids: TokenIds
    block_size: BlockSize
    num_blocks: Blocks
    kv_bytes: Count = 0

    @property
    def kv_tokens(self) -> int:
        """How many tokens the KV pool holds."""
        return self.num_blocks * self.block_size


class RoleWeights(msgspec.Struct, frozen=True, kw_only=True):
    """How readily placement offers each kind of step to a worker: 0 never, 1 fully. Any can do both."""

    prefill: Weight = 1.0
    decode: Weight = 1.0


PRESETS: dict[Role, RoleWeights] = {
    "prefill": RoleWeights(prefill=1.0, decode=0.0),
    "decode": RoleWeights(prefill=0.0, decode=1.0),
    "unified": RoleWeights(),
    "parked": RoleWeights(prefill=0.0, decode=0.0),
}


OFFERED: tuple[Role, ...] = ("prefill", "decode", "unified")


def nearest_role(weights: RoleWeights) -> Role:
    """The preset of the nearest proportion of prefill to decode; parked only for what is offered nothing."""
    most = max(weights.prefill, weights.decode)
    if most == 0.0:
        return "parked"

    def distance(role: Role) -> float:
        preset = PRESETS[role]
        return abs(preset.prefill - weights.prefill / most) + abs(preset.decode - weights.decode / most)

    return min(OFFERED, key=distance)


class WorkerDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`incarnation` is random per start: the same address with another incarnation is another worker.

    `kv_address` is where its KV plane listens, None for a worker that takes no part in hand-offs. One step
    takes at most `max_num_seqs` sequences and `max_num_batched_tokens` tokens, 0 where it does not say.
    One with `texts` takes text and no tokens: these are its models, of which `model` is the first, and
    `max_num_seqs` is how many requests it is given at once.
    `engine` is what it runs; one that `needs_peer` serves nothing but its half of a hand-off. One that
    `takes_faults` was started to be broken on purpose. `roofline` is None where it does not say how fast it
    can be.
    """

    worker_id: Name
    incarnation: Name
    pid: Count
    role: Role
    model: ModelDescription
    kv_address: Name | None = None
    kv_layout: KVLayout | None = None
    max_num_seqs: Tokens = 0
    max_num_batched_tokens: Tokens = 0
    engine: Name = "atom"
    needs_peer: bool = False
    takes_faults: bool = False
    texts: tuple[ModelDescription, ...] = ()
    roofline: Roofline | None = None


def find_fault(worker: WorkerDescription) -> str | None:
    """What of it is no number, or no name, that could be; None when all is within its bounds.

    Decoding checks what comes over the token plane; this is for what was made of somebody else's words.
    """
    try:
        msgspec.convert(msgspec.to_builtins(worker), WorkerDescription)
    except msgspec.ValidationError as error:
        return str(error)
    return None


class LoadReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State and running totals of one engine; counters only grow within an incarnation."""

    running: Count = 0
    waiting: Count = 0
    free_blocks: Count = 0
    cached_blocks: Count = 0  # free to take, but still hold a prefix
    total_blocks: Count = 0
    prefix_cache_queries: Count = 0  # prompt tokens looked up
    prefix_cache_hits: Count = 0  # prompt tokens found
    preemptions: Count = 0
    steps: Count = 0
    prompt_tokens: Count = 0  # computed in prefill
    generation_tokens: Count = 0
    held_blocks: Count = 0  # of requests, offers, pushes and transfers
    reserved_blocks: Count = 0  # granted to hand-offs that are under way
    quarantined_blocks: Count = 0  # a transfer may still write there
    unaccounted_blocks: Count = 0  # in no state or in two, or held by nobody: 0, or the engine is at fault
    kv_imbalances: Count = 0  # how often that was found, by the look after every step
    kv_transfers: CountsByOutcome = {}  # hand-offs that ended, by outcome
    kv_refusals: CountsByOutcome = {}  # messages and tickets refused, by reason
    step_s: Seconds = 0.0  # how long the present step has taken so far
    draining: bool = False  # takes no new request, only the decode legs of KV that it has been handed
