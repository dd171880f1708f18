"""Whether an answer's last token is a part of it."""

from atomesh.protocol.generation import TokenDelta
from atomesh.protocol.sampling import SamplingSpec


def ends_with_stop_token(delta: TokenDelta, sampling: SamplingSpec) -> bool:
    """Whether what stopped the choice is an EOS or stop token; a grammar ends with a token of the answer."""
    if delta.finish_reason != "stop":
        return False
    if sampling.grammar is None:
        return True
    return delta.token_ids[-1:] != [] and delta.token_ids[-1] in (
        *sampling.eos_token_ids,
        *sampling.stop_token_ids,
    )
