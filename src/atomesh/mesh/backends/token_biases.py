"""The tokens that an engine that is not ours shall favour or avoid, as such engines are told. Pure."""

from atomesh.errors import InvalidRequestError
from atomesh.protocol.sampling import SamplingSpec

BAN = -100.0  # the least that logit_bias takes


def token_biases(sampling: SamplingSpec) -> dict[str, float]:
    """`logit_bias` with the bad words in it. Raises InvalidRequestError for a bad word of several tokens."""
    biases = dict(sampling.logit_bias)
    for word in sampling.bad_words:
        if len(word) > 1:
            raise InvalidRequestError(
                f"bad_words has a word of {len(word)} tokens; this model's engine takes those of one token "
                "only: leave it out",
                param="bad_words",
            )
        biases[word[0]] = BAN
    return {str(token_id): value for token_id, value in biases.items()}
