"""A refusal of the chat that a request was translated to, in the words of the request."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from atomesh.errors import InvalidRequestError

# What a path, or the message that begins with it, is to begin with instead; the first that fits.
_RENAMED = tuple(
    (re.compile(theirs), ours)
    for theirs, ours in (
        (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
        (r"(tools\[\d+\])\.function\.name", r"\1.name"),
        (r"response_format(?:\.json_schema)?", "output_config.format"),
        (r"tool_choice is 'required'", "tool_choice.type is 'any'"),
        (r"stop\b", "stop_sequences"),
        (r"thinking_token_budget", "thinking.budget_tokens"),
        (r"reasoning_effort", "output_config.effort"),
    )
)


@contextmanager
def in_own_words() -> Iterator[None]:
    """An InvalidRequestError from inside names the field that the client sent."""
    try:
        yield
    except InvalidRequestError as error:
        param = None if error.param is None else own_words(error.param)
        raise type(error)(own_words(error.message), param=param, code=error.code) from None


def own_words(text: str) -> str:
    for pattern, ours in _RENAMED:
        if (found := pattern.match(text)) is not None:
            return found.expand(ours) + text[found.end() :]
    return text
