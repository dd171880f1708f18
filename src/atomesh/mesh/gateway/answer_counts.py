"""What another server's answer took, read from its end: `usage` in OpenAI's words or in Anthropic's."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from atomesh.mesh.dispatch.text_ask import TextUsage

LONGEST_USAGE = 4096
MOST_LOOKS = 4
TEMPLATE_TOKENS = 4096  # that a server may have put around a prompt, or seen in its pictures
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_REASON = re.compile(
    rb'"finish_reason"\s*:\s*"(\w{1,20})"|"stop_reason"\s*:\s*"(end_turn|max_tokens|stop_sequence|tool_use)"'
)
_FINISHED = {"stop": "stop", "length": "length", "max_tokens": "length", "error": "error", "abort": "abort"}
_parse = json.JSONDecoder()


def usage_in(answer: bytes) -> TextUsage | None:
    """The last that is said in it; None where nothing is. What stands in a text is quoted, and not found."""
    for told in _objects_called_usage(answer):
        prompt = _count(told, "prompt_tokens", "input_tokens")
        if prompt is not None:
            details = told.get("prompt_tokens_details") or told.get("input_tokens_details")
            cached = _count(details, "cached_tokens") if isinstance(details, dict) else None
            if "cache_read_input_tokens" in told and "prompt_tokens" not in told:
                cached = _count(told, "cache_read_input_tokens") or 0
                prompt += cached + (_count(told, "cache_creation_input_tokens") or 0)
            return TextUsage(
                _count(told, "completion_tokens", "output_tokens") or 0, prompt, min(cached or 0, prompt)
            )
    return None


def believable(told: TextUsage, asked_bytes: int, passed_bytes: int) -> TextUsage:
    """What a request of this size, and an answer of that, can have taken: no token has less than a byte."""
    prompt = None if told.prompt_tokens is None else min(told.prompt_tokens, asked_bytes + TEMPLATE_TOKENS)
    return TextUsage(
        min(told.completion_tokens, passed_bytes), prompt, min(told.cached_tokens, prompt or 0), told.is_guess
    )


def finish_reasons_in(answer: bytes) -> list[str]:
    """In our four words; calls of tools are stops."""
    words = [one or other for one, other in _REASON.findall(answer)]
    return [_FINISHED.get(word.decode(), "stop") for word in words]


def _objects_called_usage(answer: bytes) -> Iterator[Mapping[str, Any]]:
    """The last first."""
    ends = [match.end() for match in _USAGE.finditer(answer)]
    for begin in reversed(ends[-MOST_LOOKS:]):
        text = answer[begin : begin + LONGEST_USAGE].decode("utf-8", "replace")
        try:
            yield _parse.raw_decode(text)[0]
        except (ValueError, RecursionError):
            continue


def _count(told: Mapping[str, Any], *names: str) -> int | None:
    found = (told[name] for name in names if type(told.get(name)) is int)
    return next((count for count in found if 0 <= count < 2**40), None)
