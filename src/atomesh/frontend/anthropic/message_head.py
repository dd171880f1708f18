"""What a message says of itself, and what it took, as Anthropic counts it."""

from dataclasses import dataclass
from typing import Any

from atomesh.frontend.generation import Generation


@dataclass(frozen=True, slots=True)
class MessageHead:
    id: str
    model: str

    def message(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """One that has not ended yet."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def message_usage(generation: Generation, thinking_tokens: int) -> dict[str, Any]:
    """`input_tokens` are those that no cache had; nothing is ever charged for being put into one."""
    cached = generation.cached_tokens
    return {
        "input_tokens": len(generation.request.prompt_token_ids) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generation.completion_tokens,
        "output_tokens_details": {"thinking_tokens": thinking_tokens},
    }
