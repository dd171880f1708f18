"""Who may enter, and who goes first."""

from bisect import bisect_left, insort
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from atomesh.errors import ContextLengthError, InvalidRequestError
from atomesh.protocol.sampling_bounds import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atomesh.engine.core.request import OrderKey, TokenSequence
    from atomesh.protocol.generation import GenerationRequest

Policy = Literal["fcfs", "priority"]

ARRIVALS_PER_PRIORITY = 1024


def rank_of(policy: Policy, priority: int, arrival: int) -> int:
    """The smaller goes first. A step of priority outweighs so many arrivals, no more: nobody starves."""
    return arrival if policy == "fcfs" else arrival + ARRIVALS_PER_PRIORITY * priority


def max_kv_tokens(request: "GenerationRequest", max_model_len: int) -> int:
    """The most tokens whose KV one choice ever needs at once: the last sampled token's is never computed."""
    prompt_len = len(request.prompt_token_ids)
    return max(prompt_len, min(prompt_len + request.sampling.max_tokens, max_model_len) - 1)


def check_capacity(request: "GenerationRequest", max_model_len: int, pool_tokens: int) -> None:
    """Raises ContextLengthError or InvalidRequestError for a request that could never run to its end."""
    prompt_len = len(request.prompt_token_ids)
    if prompt_len == 0:
        raise InvalidRequestError("the prompt has no tokens; send at least one", param="prompt")
    BOUNDS["n"].check("n", request.n)
    if prompt_len >= max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {max_model_len} tokens, prompt and answer together; "
            f"the prompt alone has {prompt_len}: shorten it",
            param="prompt",
        )
    needed = max_kv_tokens(request, max_model_len)
    if needed > pool_tokens:
        raise InvalidRequestError(
            f"the request needs room for {needed} tokens in the KV cache, which holds {pool_tokens}; "
            "shorten the prompt, lower max_tokens, or start the server with more --kv-memory",
            param="max_tokens",
        )


class SequenceQueue:
    """Sequences in the order in which they are served. The keys are unique."""

    def __init__(self) -> None:
        self._sequences: list[TokenSequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> "Iterator[TokenSequence]":
        return iter(self._sequences)

    def __contains__(self, sequence: "TokenSequence") -> bool:
        index = self._index(sequence)
        return index < len(self._sequences) and self._sequences[index] is sequence

    @property
    def first(self) -> "TokenSequence":
        return self._sequences[0]

    @property
    def last(self) -> "TokenSequence":
        return self._sequences[-1]

    def num_before(self, sequence: "TokenSequence") -> int:
        """How many stand before `sequence`, or would."""
        return self._index(sequence)

    def add(self, sequence: "TokenSequence") -> None:
        insort(self._sequences, sequence, key=_order_key)

    def remove(self, sequence: "TokenSequence") -> None:
        index = self._index(sequence)
        if index == len(self._sequences) or self._sequences[index] is not sequence:
            raise ValueError(f"sequence {sequence.sequence_id} is not in the queue")
        del self._sequences[index]

    def _index(self, sequence: "TokenSequence") -> int:
        return bisect_left(self._sequences, sequence.order_key, key=_order_key)

    def check_invariants(self) -> None:
        keys = [sequence.order_key for sequence in self._sequences]
        if any(first >= second for first, second in pairwise(keys)):
            raise AssertionError("a queue is out of order")


def _order_key(sequence: "TokenSequence") -> "OrderKey":
    return sequence.order_key
