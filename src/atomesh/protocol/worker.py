"""What a worker says of itself: once at hello, then its load with every step."""

from typing import Literal

import msgspec

from atomesh.protocol.kv_layout import KVLayout
from atomesh.protocol.roofline import Roofline

Role = Literal["prefill", "decode", "unified", "parked"]


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The model as served by a worker; the frontend needs no other knowledge of it.

    `path` is where the model's files lie on the worker's host, for a gateway on the same host to read the
    tokenizer from. `max_model_len` is in tokens, prompt and answer together, and always fits the KV pool.
    `kv_bytes` is the size of that pool, 0 where the worker does not say.
    """

    name: str
    path: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    block_size: int
    num_blocks: int
    kv_bytes: int = 0

    @property
    def kv_tokens(self) -> int:
        """How many tokens the KV pool holds."""
        return self.num_blocks * self.block_size


class RoleWeights(msgspec.Struct, frozen=True, kw_only=True):
    """How readily placement offers each kind of step to a worker: 0 never, 1 fully. Any can do both."""

    prefill: float = 1.0
    decode: float = 1.0


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

    worker_id: str
    incarnation: str
    pid: int
    role: Role
    model: ModelDescription
    kv_address: str | None = None
    kv_layout: KVLayout | None = None
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    engine: str = "atom"
    needs_peer: bool = False
    takes_faults: bool = False
    texts: tuple[ModelDescription, ...] = ()
    roofline: Roofline | None = None


class LoadReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State and running totals of one engine; counters only grow within an incarnation."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0  # free to take, but still hold a prefix
    total_blocks: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # prompt tokens found
    preemptions: int = 0
    steps: int = 0
    prompt_tokens: int = 0  # computed in prefill
    generation_tokens: int = 0
    held_blocks: int = 0  # of requests, offers, pushes and transfers
    reserved_blocks: int = 0  # granted to hand-offs that are under way
    quarantined_blocks: int = 0  # a transfer may still write there
    unaccounted_blocks: int = 0  # in no state or in two, or held by nobody: 0, or the engine is at fault
    kv_imbalances: int = 0  # how often that was found, by the look after every step
    kv_transfers: dict[str, int] = {}  # hand-offs that ended, by outcome
    kv_refusals: dict[str, int] = {}  # messages and tickets refused, by reason
    step_s: float = 0.0  # how long the present step has taken so far
    draining: bool = False  # takes no new request, only the decode legs of KV that it has been handed
