"""What a worker measured, for the cost model to learn from."""

import msgspec


class StepSample(msgspec.Struct, frozen=True, array_like=True):
    """One engine step: how long it took, and what it computed.

    A sequence that computes the tokens m … n of its prompt adds n − m to `prefill_tokens` and n² − m² to
    `prefill_quadratic`. One that computes a single token decodes: `batch` counts those, and `context_tokens`
    sums the tokens that each of them attends to.
    """

    seconds: float
    prefill_tokens: int
    prefill_quadratic: int
    context_tokens: int
    batch: int


class TransferSample(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that a peer pushed: their bytes, and the seconds from the first that is heard of it on."""

    peer_incarnation: str
    num_bytes: int
    seconds: float
