import math

import numpy as np
import pytest
import torch

from atomesh.errors import InvalidRequestError
from atomesh.protocol.sampling import SamplingParams

OUT_OF_RANGE = [
    ("n", 0), ("n", 129), ("temperature", -0.1), ("temperature", 2.1), ("temperature", math.nan),
    ("top_p", 0.0),
    ("top_p", 1.1), ("top_k", -2), ("min_p", -0.1), ("min_p", 1.1), ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5), ("repetition_penalty", 0.0), ("repetition_penalty", math.inf),
    ("repetition_penalty", -1.0), ("repetition_penalty", math.nan), ("repetition_penalty", 10**400),
    ("seed", 2**63),
    ("max_tokens", -1), ("min_tokens", -1), ("logprobs", 21), ("prompt_logprobs", -1), ("stop", ""),
    ("stop", ["x"] * 65), ("stop", "é" * 513), ("logit_bias", dict.fromkeys(range(1025), 0.0)),
    ("bad_words", ["x"] * 1025), ("bad_words", ["é" * 513]), ("bad_words", [""]),
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
    for temperature in (0.0, 9e-6):  # the sampler is greedy at both
        with pytest.raises(InvalidRequestError, match=f"n is 2 with temperature {temperature:g}, which"):
            SamplingParams(n=2, temperature=temperature)
    assert SamplingParams(n=2, temperature=1e-5).n == 2


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("seed", 1.5, "seed is 1.5 (float); it must be an int or None"),
        ("top_k", 2.5, "top_k is 2.5 (float); it must be an int"),
        ("n", 1.5, "n is 1.5 (float); it must be an int"),
        ("n", True, "n is True (bool); it must be an int"),
        ("temperature", "x", "temperature is 'x' (str); it must be a float"),
        ("temperature", None, "temperature is None (NoneType); it must be a float"),
        ("max_tokens", "3", "max_tokens is '3' (str); it must be an int or None"),
        ("ignore_eos", 1, "ignore_eos is 1 (int); it must be a bool"),
        ("stop", 5, "stop is 5 (int); it must be a string, a list of strings or None"),
        ("stop", ["a", 5], "stop is ['a', 5] (list); it must be a string, a list of strings or None"),
        ("stop_token_ids", [1.0], "stop_token_ids is [1.0] (list); it must be a list of ints or None"),
        ("allowed_token_ids", 3, "allowed_token_ids is 3 (int); it must be a list of ints or None"),
        ("bad_words", "no", "bad_words is 'no' (str); it must be a list of strings or None"),
        (
            "logit_bias",
            {"30": 1},
            "logit_bias is {'30': 1} (dict); it must be a dict from ints to floats or None",
        ),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_type_wanted(name, value, wanted):
    with pytest.raises(ValueError, match="it must be") as caught:
        SamplingParams(**{name: value})
    assert isinstance(caught.value, InvalidRequestError)
    assert (caught.value.message, caught.value.param) == (wanted, name)


def test_an_int_is_a_float_and_a_tuple_a_list():
    params = SamplingParams(temperature=1, logit_bias={3: 2}, stop_token_ids=(1, 2))
    assert (params.temperature, params.logit_bias, params.stop_token_ids) == (1, {3: 2}, (1, 2))


def test_a_clone_shares_nothing_and_is_checked():
    params = SamplingParams(temperature=0.5, stop=["a"], logit_bias={3: 2.0}, max_tokens=None)
    clone = params.clone()
    assert clone == params
    assert clone.stop is not params.stop
    assert clone.logit_bias is not params.logit_bias
    assert params.clone(max_tokens=4) == SamplingParams(
        temperature=0.5, stop=["a"], logit_bias={3: 2.0}, max_tokens=4
    )
    with pytest.raises(InvalidRequestError, match="top_k is -2"):
        params.clone(top_k=-2)


@pytest.mark.parametrize("penalty", [5e-324, 1e-30, 0.5, 1, 1e30, 1.7976931348623157e308])
def test_every_finite_repetition_penalty_above_0_is_allowed(penalty):
    assert SamplingParams(repetition_penalty=penalty).repetition_penalty == penalty


def test_numpy_s_and_torch_s_numbers_are_taken_for_what_they_are():
    params = SamplingParams(
        n=np.int64(2),
        temperature=np.float32(0.5),
        ignore_eos=np.bool_(True),
        max_tokens=torch.tensor(7),
        stop_token_ids=np.array([1, 2]),
        allowed_token_ids=[np.int32(3), 4],
        logit_bias={np.int64(5): np.float64(1.5)},
        stop=np.array(["a"]),
    )
    assert params == SamplingParams(
        n=2, temperature=0.5, ignore_eos=True, max_tokens=7, stop_token_ids=[1, 2], allowed_token_ids=[3, 4],
        logit_bias={5: 1.5}, stop=["a"],
    )  # fmt: skip
    assert type(params.n) is type(params.max_tokens) is int
    assert type(params.temperature) is float
    assert params.ignore_eos is True
    assert params.clone(n=np.int8(3)).n == 3


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("max_tokens", np.float32(3.0), "max_tokens is 3.0 (float); it must be an int or None"),
        ("n", np.bool_(True), "n is True (bool); it must be an int"),
        (
            "stop_token_ids",
            np.array([1.5]),
            "stop_token_ids is [1.5] (list); it must be a list of ints or None",
        ),
        ("temperature", np.array([0.5]), "temperature is [0.5] (list); it must be a float"),
        ("temperature", np.float64("nan"), "temperature is nan; it must lie in [0.0, 2.0]"),
    ],
)
def test_what_is_not_exactly_such_a_number_is_refused(name, value, wanted):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert (caught.value.message, caught.value.param) == (wanted, name)
