"""What a worker says of itself: once at hello, then its load with every step."""

from typing import Literal

import msgspec

Role = Literal["prefill", "decode", "unified"]


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The model as served by a worker; the frontend needs no other knowledge of it.

    `path` is where the model's files lie on the worker's host, for a gateway on the same host to read the
    tokenizer from. `max_model_len` is in tokens, prompt and answer together, and always fits the KV pool.
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


class WorkerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """`incarnation` is random per start: the same address with another incarnation is another worker."""

    worker_id: str
    incarnation: str
    pid: int
    role: Role
    model: ModelDescription


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
