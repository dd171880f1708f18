"""What no type says of a request's fields, for the OpenAPI document: the very bounds that the code checks."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from atomesh.frontend.anthropic import conversation
from atomesh.frontend.anthropic.messages_request import (
    MAX_TEMPERATURE,
    InputMessage,
    MessagesRequest,
    PromptRequest,
)
from atomesh.frontend.openai.chat_request import ROLES, ChatMessage, ChatRequest
from atomesh.frontend.openai.completion_request import CompletionRequest
from atomesh.frontend.openai.responses import request as responses_request
from atomesh.frontend.openai.responses.request import PromptFields, ResponsesRequest
from atomesh.frontend.openai.sampling_fields import SamplingFields
from atomesh.frontend.openai.tokenize import TokenizeRequest
from atomesh.protocol import sampling
from atomesh.protocol.sampling_bounds import (
    BOUNDS,
    COMPLETION_LOGPROBS,
    LARGEST_FLOAT,
    LARGEST_INT32,
    SEED_RANGE,
    TOP_LOGPROBS,
    Bound,
)

Facts = Mapping[str, Mapping[str, Any]]  # by a field's name, what stands in its JSON schema


def schema_of(bound: Bound) -> dict[str, float]:
    """As JSON schema, which a value that is no number passes."""
    low = "exclusiveMinimum" if bound.is_above_low else "minimum"
    highest = {} if bound.high == LARGEST_FLOAT else {"maximum": bound.high}
    return {low: bound.low, **highest}


def _list_of_texts(most: int, most_bytes: int) -> dict[str, Any]:
    """Or one text; a text of so many bytes has at most so many characters."""
    text = {"minLength": 1, "maxLength": most_bytes}
    return {**text, "maxItems": most, "items": text}


_SAMPLING: Facts = {
    **{name: schema_of(bound) for name, bound in BOUNDS.items() if name != "logprobs"},
    "max_completion_tokens": schema_of(Bound(1, LARGEST_INT32)),
    "best_of": schema_of(BOUNDS["n"]),
    "stop": _list_of_texts(sampling.MAX_STOP_STRINGS, sampling.MAX_STOP_STRING_BYTES),
    "bad_words": _list_of_texts(sampling.MAX_BAD_WORDS, sampling.MAX_BAD_WORD_BYTES),
    "logit_bias": {
        "maxProperties": sampling.MAX_LOGIT_BIAS,
        "propertyNames": {"type": "string", "pattern": "^(0|[1-9][0-9]{0,9})$"},
    },
    "allowed_token_ids": {"minItems": 1},
    "truncate_prompt_tokens": {"minimum": -1},
    "priority": schema_of(Bound(*SEED_RANGE)),
    "cache_salt": {"minLength": 1},
}
FACTS: Mapping[type[msgspec.Struct], Facts] = {
    SamplingFields: _SAMPLING,
    ChatRequest: {
        "messages": {"minItems": 1},
        "top_logprobs": schema_of(TOP_LOGPROBS),
        "max_tokens": schema_of(Bound(1, LARGEST_INT32)),
    },
    CompletionRequest: {
        "logprobs": schema_of(COMPLETION_LOGPROBS),
        "prompt": {"minItems": 1, "minLength": 1},
    },
    ChatMessage: {"role": {"enum": list(ROLES)}},
    TokenizeRequest: {"messages": {"minItems": 1}},
    PromptRequest: {"messages": {"minItems": 1}, "mcp_servers": {"maxItems": 0}},
    InputMessage: {"role": {"enum": list(conversation.ROLES)}},
    ResponsesRequest: {
        **{name: facts for name, facts in _SAMPLING.items() if name in ResponsesRequest.__struct_fields__},
        "max_output_tokens": schema_of(Bound(1, LARGEST_INT32)),
        "top_logprobs": schema_of(TOP_LOGPROBS),
    },
    MessagesRequest: {
        "max_tokens": schema_of(Bound(1, LARGEST_INT32)),
        "temperature": schema_of(Bound(0.0, MAX_TEMPERATURE)),
        "top_p": _SAMPLING["top_p"],
        "top_k": _SAMPLING["top_k"],
        "stop_sequences": _SAMPLING["stop"],
    },
}
REFUSED: Mapping[type[msgspec.Struct], Collection[str]] = {PromptFields: responses_request.REFUSED}
REQUIRED: Mapping[type[msgspec.Struct], tuple[str, ...]] = {CompletionRequest: ("prompt",)}


def facts_of(kind: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Of the type's own fields and those that it inherits."""
    found: dict[str, dict[str, Any]] = {}
    for base in reversed(kind.__mro__):
        for name, facts in FACTS.get(base, {}).items():
            found[name] = dict(facts)
    return found
