"""When a choice ends. Stop strings need text and are the frontend's."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atomesh.engine.core.request import TokenSequence
    from atomesh.protocol.generation import FinishReason


@dataclass(frozen=True, slots=True)
class Stop:
    """`stop_token_id` is the entry of the caller's stop_token_ids that was hit; None for EOS and length."""

    reason: "FinishReason"
    stop_token_id: int | None = None


LENGTH = Stop("length")
END_OF_SEQUENCE = Stop("stop")


def find_stop(sequence: "TokenSequence", max_model_len: int, *, ends_answer: bool = False) -> Stop | None:
    """Whether the sequence ends with its newest token; a stop token wins over a length reached with it.

    So does a token with which a grammar ends (`ends_answer`), whatever `min_tokens` says.
    """
    spec = sequence.sampling
    num_output_tokens = len(sequence.output_token_ids)
    if num_output_tokens and num_output_tokens >= spec.min_tokens:
        token_id = sequence.output_token_ids[-1]
        if token_id in spec.eos_token_ids:
            return END_OF_SEQUENCE
        if token_id in spec.stop_token_ids:
            return Stop("stop", token_id)
    if ends_answer:
        return END_OF_SEQUENCE
    if num_output_tokens >= spec.max_tokens or sequence.num_tokens >= max_model_len:
        return LENGTH
    return None
