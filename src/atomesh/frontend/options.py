"""What an operator may set of the HTTP face."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def _nothing_to_explain(_request_ids: Sequence[str]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class FrontendOptions:
    """Sizes in bytes, characters or items as named, times in seconds.

    A stream's 200 is held back for the first token, at most `hold_s`; after that a comment goes whenever
    nothing went for `keep_alive_s`. Texts above `inline_characters` are tokenised by `text_threads` threads,
    which also render all chats; the texts in line for them have at most `max_text_characters` together.
    Responses that clients may ask for again are kept in the file `response_store`, or in memory without one,
    at most so many and so many bytes; `max_background` of them may be in the making with nobody waiting.
    `explain` tells how an answer's requests, of these ids, were served: in further fields of the answer.
    """

    max_body_bytes: int = 16 * 2**20
    body_timeout_s: float = 60.0
    hold_s: float = 3.0
    keep_alive_s: float = 5.0
    inline_characters: int = 4096
    text_threads: int = 2
    max_text_characters: int = 64 * 2**20
    max_prompts: int = 1024
    max_answers: int = 1024
    max_timeout_s: float = 86_400.0
    response_store: Path | None = None
    max_stored_responses: int = 100_000
    max_stored_bytes: int = 256 * 2**20
    max_background: int = 256
    chat_template_kwargs: frozenset[str] = frozenset(
        {
            "enable_thinking",
            "thinking",
            "reasoning_effort",
            "thinking_budget",
            "clear_thinking",
            "preserve_thinking",
            "custom_instructions",
            "date_string",
        }
    )
    explain: Callable[[Sequence[str]], dict[str, Any]] = _nothing_to_explain

    @property
    def max_worker_bytes(self) -> int:
        """What one request may come to on its way to a worker, however many prompts share its parameters."""
        return 2 * self.max_body_bytes
