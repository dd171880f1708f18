from typing import Any

import pytest

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.completion_request import (
    CompletionRequest,
    parse_completion_sampling,
    split_prompts,
)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([0], [[0]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_prompt_comes_in_four_forms(prompt: Any, expected: list[object]) -> None:
    assert split_prompts(prompt) == expected


@pytest.mark.parametrize("prompt", [None, "", [], [""], [[]], ["a", 1], [1, "a"], [[1], "a"], [1, [1]]])
def test_an_empty_or_mixed_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        split_prompts(prompt)
    assert caught.value.param is not None
    assert caught.value.param.startswith("prompt")


def test_prompt_logprobs_follow_from_echo() -> None:
    assert parse_completion_sampling(CompletionRequest(logprobs=2)).prompt_logprobs is None
    assert parse_completion_sampling(CompletionRequest(logprobs=2, echo=True)).prompt_logprobs == 2
    both = parse_completion_sampling(CompletionRequest(logprobs=2, echo=True, prompt_logprobs=7))
    assert (both.logprobs, both.prompt_logprobs) == (2, 7)
    assert parse_completion_sampling(CompletionRequest(echo=True)).prompt_logprobs is None


def test_no_tokens_are_allowed_with_echo_only() -> None:
    assert parse_completion_sampling(CompletionRequest(echo=True, max_tokens=0)).max_tokens == 0
    assert parse_completion_sampling(CompletionRequest()).max_tokens == 16
    with pytest.raises(InvalidRequestError):
        parse_completion_sampling(CompletionRequest(max_tokens=0))
