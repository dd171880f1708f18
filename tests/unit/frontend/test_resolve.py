from pathlib import Path

import pytest

from atomesh.errors import ContextLengthError, InvalidRequestError
from atomesh.frontend.resolve import fit_to_prompt, resolve_sampling, resolve_shared
from atomesh.frontend.text.tokenizer import Tokenizer, load_tokenizer
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.sampling import SamplingParams, SamplingSpec
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.tiny_model import write_tiny_model

MODEL = ModelDescription(
    name="tiny",
    path="",
    architecture="llama",
    dtype="float32",
    vocab_size=384,
    max_model_len=100,
    eos_token_ids=(2, 7),
    block_size=32,
    num_blocks=8,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(open_checkpoint(write_tiny_model(Path(tmp_path_factory.mktemp("model")))))


@pytest.fixture
def resolve(tokenizer: Tokenizer):
    def run(prompt_len: int = 10, **params: object) -> SamplingSpec:
        return resolve_sampling(SamplingParams(**params), tokenizer, MODEL, prompt_len)

    return run


def test_defaults_are_settled(resolve) -> None:
    assert resolve(seed=5) == SamplingSpec(seed=5, max_tokens=16, eos_token_ids=(2, 7))


def test_each_request_without_a_seed_is_given_its_own(resolve) -> None:
    seeds = {resolve().seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_answer_is_clamped_to_the_context(resolve) -> None:
    assert resolve(max_tokens=1000).max_tokens == 90
    assert resolve(max_tokens=None).max_tokens == 90
    assert resolve(prompt_len=99, max_tokens=5).max_tokens == 1
    assert resolve(max_tokens=0, prompt_logprobs=1).max_tokens == 0


def test_the_minimum_never_exceeds_what_is_left(resolve) -> None:
    spec = resolve(prompt_len=95, max_tokens=50, min_tokens=20)
    assert (spec.min_tokens, spec.max_tokens) == (5, 5)


@pytest.mark.parametrize("prompt_len", [100, 5000])
def test_a_prompt_that_fills_the_context_is_refused(resolve, prompt_len: int) -> None:
    with pytest.raises(ContextLengthError, match="maximum context length is 100 tokens") as refused:
        resolve(prompt_len=prompt_len)
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")


def test_greedy_ignores_what_narrows_a_choice(resolve) -> None:
    spec = resolve(temperature=0.0, top_k=5, top_p=0.5, min_p=0.1)
    assert (spec.top_k, spec.top_p, spec.min_p) == (0, 1.0, 0.0)


def test_top_k_minus_one_means_all(resolve) -> None:
    assert resolve(top_k=-1).top_k == 0


def test_ignore_eos_leaves_only_the_stop_token_ids(resolve) -> None:
    spec = resolve(ignore_eos=True, stop_token_ids=[9, 8, 9])
    assert (spec.eos_token_ids, spec.stop_token_ids) == ((), (9, 8))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", [3, 384]),
        ("stop_token_ids", [-1]),
        ("allowed_token_ids", [384]),
        ("logit_bias", {500: 1.0}),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused(resolve, field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"ids lie in \[0, 383\]") as refused:
        resolve(**{field: value})
    assert refused.value.param == field


def test_logit_bias_is_clamped_and_must_be_a_number(resolve) -> None:
    assert resolve(logit_bias={1: 500.0, 2: float("-inf"), 3: -1.5}).logit_bias == {
        1: 100.0,
        2: -100.0,
        3: -1.5,
    }
    with pytest.raises(InvalidRequestError, match="logit_bias of 1 is NaN"):
        resolve(logit_bias={1: float("nan")})


def test_an_empty_allow_list_is_refused(resolve) -> None:
    with pytest.raises(InvalidRequestError, match="allowed_token_ids is empty"):
        resolve(allowed_token_ids=[])


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"allowed_token_ids": [2, 7], "min_tokens": 1}, "allowed_token_ids"),
        ({"allowed_token_ids": [9], "stop_token_ids": [9], "min_tokens": 1}, "allowed_token_ids"),
        ({"stop_token_ids": list(range(384)), "min_tokens": 1}, "min_tokens"),
    ],
)
def test_constraints_that_leave_no_token_are_refused(resolve, params: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequestError, match="nothing could be said") as refused:
        resolve(**params)
    assert refused.value.param == field
    assert resolve(**{**params, "min_tokens": 0}).min_tokens == 0


def test_a_bad_word_may_not_be_all_that_is_allowed(resolve, tokenizer: Tokenizer) -> None:
    (token_id,) = tokenizer.encode("a", add_special_tokens=False)
    with pytest.raises(InvalidRequestError, match="allowed_token_ids has nothing but"):
        resolve(allowed_token_ids=[token_id], bad_words=["a"])


def test_bad_words_are_banned_at_the_start_and_after_a_space(resolve, tokenizer: Tokenizer) -> None:
    alone, spaced = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in ("the", " the"))
    assert spaced[0] != alone[0]
    expected = (alone, spaced) if len(spaced) == len(alone) else (alone,)
    assert resolve(bad_words=["the"]).bad_words == expected
    assert resolve(bad_words=[" the"]).bad_words == expected


def test_an_empty_bad_word_is_refused(resolve) -> None:
    with pytest.raises(InvalidRequestError, match="bad_words has an empty word"):
        resolve(bad_words=["  "])


def test_the_prompts_of_a_call_share_its_lists_and_nothing_else(tokenizer: Tokenizer) -> None:
    params = SamplingParams(
        max_tokens=50, min_tokens=20, logit_bias={3: 1.0}, bad_words=["no"], allowed_token_ids=[3, 4]
    )
    shared = resolve_shared(params, tokenizer, MODEL)
    first, second = (fit_to_prompt(shared, params, MODEL, prompt_len) for prompt_len in (10, 90))
    assert first.logit_bias is second.logit_bias
    assert first.bad_words is second.bad_words
    assert first.allowed_token_ids is second.allowed_token_ids
    assert (first.max_tokens, second.max_tokens) == (50, 10)
    assert (first.min_tokens, second.min_tokens) == (20, 10)
    assert first.seed != second.seed
    seeded = SamplingParams(seed=-5)
    assert fit_to_prompt(resolve_shared(seeded, tokenizer, MODEL), seeded, MODEL, 10).seed == -5
