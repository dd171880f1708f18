"""What of tests/wire and tests/live a live vLLM cannot pass, each with the reason, and asked of vLLM itself.

An exception holds only while vLLM says what `is_so` expects: when it learns better, the test is run again.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 120.0
PROMPTS = ("Once upon a time", "The sea is", "Paris")


@dataclass(frozen=True, slots=True)
class VllmAnswer:
    status: int
    body: Any

    @property
    def message(self) -> str:
        return str(self.body.get("error", {}).get("message", ""))


class DirectVllm:
    """The server without us before it."""

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self._model = model

    def complete(self, **fields: Any) -> VllmAnswer:
        body = {"model": self._model, "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, **fields}
        headers = {"content-type": "application/json"}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", data, headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310  a URL of ours
                return VllmAnswer(answer.status, json.load(answer))
        except urllib.error.HTTPError as error:
            return VllmAnswer(error.code, json.load(error))

    def version(self) -> str:
        with urllib.request.urlopen(f"{self.url}/version", timeout=TIMEOUT_S) as answer:  # noqa: S310
            return str(json.load(answer)["version"])


@dataclass(frozen=True, slots=True)
class Limit:
    """`tests` are the pytest names, without the parameters, of what cannot pass where it holds."""

    what: str
    reason: str
    is_so: Callable[[DirectVllm], bool]
    tests: tuple[str, ...] = ()


def _is_batch_dependent(vllm: DirectVllm) -> bool:
    """Whether an answer is another one beside others."""
    solo = [vllm.complete(prompt=text, max_tokens=6).body["choices"][0]["text"] for text in PROMPTS]
    beside = vllm.complete(prompt=list(PROMPTS), max_tokens=6).body["choices"]
    return solo != [choice["text"] for choice in beside]


def _tells_no_times(vllm: DirectVllm) -> bool:
    return vllm.complete().body.get("metrics") is None


def _tells_no_cached_tokens(vllm: DirectVllm) -> bool:
    return vllm.complete().body["usage"].get("prompt_tokens_details") is None


def _refuses(param: str, **fields: Any) -> Callable[[DirectVllm], bool]:
    def refuses(vllm: DirectVllm) -> bool:
        answer = vllm.complete(**fields)
        return answer.status == 400 and (answer.body["error"].get("param") or "").endswith(param)

    return refuses


def _takes_words_only(vllm: DirectVllm) -> bool:
    return vllm.complete(bad_words=[[1, 2]]).status == 400


LIMITS: Mapping[str, Limit] = {
    "bfloat16": Limit(
        "a greedy answer differs beside others in a batch",
        "its bfloat16 kernels round by the batch's shape; with --dtype float32 they do not show it",
        _is_batch_dependent,
        ("test_several_prompts_are_answered_in_order", "test_prompts_times_n_are_indexed_prompt_first"),
    ),
    "times": Limit(
        "no queue and prefill time in server-timing",
        "answers carry them only with --enable-per-request-metrics",
        _tells_no_times,
        ("test_the_raw_response_has_our_headers", "test_the_time_in_vllm_is_told"),
    ),
    "cached": Limit(
        "cached_tokens is always 0",
        "answers carry them only with --enable-prompt-tokens-details",
        _tells_no_cached_tokens,
        ("test_cached_tokens_are_vllm_s_whole_blocks", "test_a_salt_keeps_prefixes_apart"),
    ),
    "bad_words": Limit(
        "a bad word of several tokens is refused",
        "bad_words are taken as text, whose tokens vLLM chooses, and logit_bias bars single tokens only",
        _takes_words_only,
    ),
    "streamed prompt_logprobs": Limit(
        "prompt_logprobs are asked whole, so that an echo with logprobs comes in one piece",
        "vLLM gives none in a stream",
        _refuses("prompt_logprobs", stream=True, prompt_logprobs=1),
    ),
    "no token": Limit(
        "max_tokens 0 computes one token, which is left out",
        "vLLM refuses it for a prompt of token ids without echo",
        _refuses("max_tokens", max_tokens=0),
    ),
    "salts": Limit(
        "salts of more than 128 characters, or with @, /, \\ or NUL, go as their digest",
        "vLLM refuses them",
        _refuses("cache_salt", cache_salt="a/b"),
    ),
}


def limits_that_hold(vllm: DirectVllm) -> list[Limit]:
    return [limit for limit in LIMITS.values() if limit.is_so(vllm)]


def excepted(limits: Sequence[Limit]) -> list[str]:
    return [test for limit in limits for test in limit.tests]
