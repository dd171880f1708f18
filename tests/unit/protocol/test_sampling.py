import math

import pytest

from atomesh.errors import InvalidRequestError
from atomesh.protocol.sampling import SamplingParams

OUT_OF_RANGE = [
    ("n", 0), ("n", 129), ("temperature", -0.1), ("temperature", 2.1), ("temperature", math.nan),
    ("top_p", 0.0),
    ("top_p", 1.1), ("top_k", -2), ("min_p", -0.1), ("min_p", 1.1), ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5), ("repetition_penalty", 0.0), ("repetition_penalty", math.inf),
    ("seed", 2**63),
    ("max_tokens", -1), ("min_tokens", -1), ("logprobs", 21), ("prompt_logprobs", -1), ("stop", ""),
    ("stop", ["x"] * 65), ("stop", "é" * 513), ("logit_bias", dict.fromkeys(range(1025), 0.0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert caught.value.status == 400


def test_the_edges_of_every_range_are_allowed():
    low = SamplingParams(
        n=1, temperature=0.0, top_p=1e-9, top_k=-1, min_p=0.0, seed=-(2**63), max_tokens=0, stop="é"
    )
    high = SamplingParams(
        n=128, temperature=2.0, top_p=1.0, min_p=1.0, seed=2**63 - 1, logprobs=20, stop=["x"] * 64
    )
    assert low.stop_strings == ("é",)
    assert len(high.stop_strings) == 64


def test_combinations_that_cannot_be_meant_are_refused():
    with pytest.raises(InvalidRequestError, match="min_tokens is 5, more than max_tokens, which is 4"):
        SamplingParams(min_tokens=5, max_tokens=4)
    with pytest.raises(InvalidRequestError, match="n is 2 with temperature 0"):
        SamplingParams(n=2, temperature=0.0)
