"""What a server lets us ask for: OpenAI-compatible servers refuse different extensions; pure."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from atomesh.bench.failures import RequestFailed

Endpoint = Literal["completions", "chat"]
REFUSED = frozenset({400, 422})


@dataclass(frozen=True, slots=True)
class Dialect:
    """The extensions that are sent. Everything is on until the server refuses it."""

    continuous_usage: bool = True
    ignore_eos: bool = True
    max_tokens: bool = True  # else max_completion_tokens, which newer OpenAI models insist on
    usage: bool = True


# In the order in which they are given up when the server does not say which one it refuses.
_WIRE_NAMES = {
    "continuous_usage": "continuous_usage_stats",
    "ignore_eos": "ignore_eos",
    "max_tokens": "max_tokens",
    "usage": "stream_options",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the API knows it, whatever its endpoint."""

    model: str
    prompt: list[int] | str
    output_tokens: int
    temperature: float | None = None
    ignore_eos: bool = True


def payload(call: Call, endpoint: Endpoint, dialect: Dialect) -> dict[str, Any]:
    """The JSON body. A chat takes text only: the prompt is then the user's one message."""
    body: dict[str, Any] = {"model": call.model, "stream": True}
    if endpoint == "chat":
        body["messages"] = [{"role": "user", "content": call.prompt}]
    else:
        body["prompt"] = call.prompt
    short = endpoint == "completions" or dialect.max_tokens
    body["max_tokens" if short else "max_completion_tokens"] = call.output_tokens
    if call.temperature is not None:
        body["temperature"] = call.temperature
    if call.ignore_eos and dialect.ignore_eos:
        body["ignore_eos"] = True
    body |= stream_options(dialect)
    return body


def stream_options(dialect: Dialect) -> dict[str, Any]:
    if not dialect.usage:
        return {}
    options = {"include_usage": True}
    if dialect.continuous_usage:
        options["continuous_usage_stats"] = True
    return {"stream_options": options}


def without_refused(dialect: Dialect, failure: RequestFailed) -> Dialect | None:
    """The dialect less what the refusal names, or less the next extension.

    None when `failure` is no refusal of one.
    """
    if failure.status not in REFUSED:
        return None
    spoken = [name for name in _WIRE_NAMES if getattr(dialect, name)]
    words = f"{failure.param or ''} {failure.message}"
    named = [name for name in spoken if _WIRE_NAMES[name] in words]
    dropped = named[:1] or spoken[:1]
    return replace(dialect, **dict.fromkeys(dropped, False)) if dropped else None


def notices(dialect: Dialect) -> list[str]:
    """What a reader of the figures must know about how the server was asked."""
    found = []
    if not dialect.usage:
        found.append("the server refuses stream_options: tokens are counted as output chunks")
    if not dialect.ignore_eos:
        found.append("the server refuses ignore_eos: answers may be shorter than asked")
    return found
