"""POST /v1/responses: the request as it comes. Null means the default."""

from collections.abc import Mapping
from typing import Any

import msgspec

from atomesh.errors import InvalidRequestError

LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"
_INCLUDABLE = frozenset(
    {
        LOGPROBS,
        SEALED_REASONING,
        # Of tools and inputs that no answer of ours has: there is never anything to include.
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
REFUSED = {  # by name, with what to do instead
    "conversation": "carry the conversation by previous_response_id",
    "prompt": "send instructions and input",
    "context_management": "set truncation, or send fewer items",
    "response_format": "ask with text.format",
    "messages": "send them as input",
    "max_tokens": "ask with max_output_tokens",
    "max_completion_tokens": "ask with max_output_tokens",
}
_MAX_METADATA = 16
_MAX_METADATA_KEY = 64
_MAX_METADATA_VALUE = 512


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, frozen=True):
    """Any item; which fields one has depends on its type (items.py). Without a type it is a message."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    encrypted_content: str | None = None


class Tool(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[Tool] | None = None


class TextFormat(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_obfuscation: bool | None = None


class PromptFields(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the prompt, for answers and for the counting of their tokens."""

    model: str | None = None
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Refused where they ask for anything.
    conversation: object = None
    prompt: object = None
    context_management: object = None
    response_format: object = None
    messages: object = None
    max_tokens: object = None
    max_completion_tokens: object = None


class ResponsesRequest(PromptFields, frozen=True, kw_only=True):
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    # As vLLM takes them, beyond OpenAI's.
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    structured_outputs: object = None
    thinking_token_budget: int | None = None
    include_reasoning: bool | None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    def includes(self, what: str) -> bool:
        return what in (self.include or ())


def check_prompt_fields(request: PromptFields) -> None:
    """What no type says of the prompt's fields. Raises InvalidRequestError."""
    for name, remedy in REFUSED.items():
        if getattr(request, name) is not None:
            raise InvalidRequestError(f"{name} is not supported; {remedy}", param=name)
    _check_word(request.truncation, ("auto", "disabled"), "truncation")
    if request.text is not None:
        _check_word(request.text.verbosity, ("low", "medium", "high"), "text.verbosity")
    if request.reasoning is not None:
        for name in ("summary", "generate_summary"):
            allowed = ("auto", "concise", "detailed")
            _check_word(getattr(request.reasoning, name), allowed, f"reasoning.{name}")


def check_request(request: ResponsesRequest) -> None:
    """What no type says of the fields. Raises InvalidRequestError."""
    check_prompt_fields(request)
    for index, name in enumerate(request.include or ()):
        _check_word(name, sorted(_INCLUDABLE), f"include[{index}]")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError(
            "stream_options is only allowed with stream: true; remove it or stream", param="stream_options"
        )
    if request.background and not request.is_stored:
        raise InvalidRequestError(
            "background needs store: true, for its answer is fetched later; remove one of the two",
            param="background",
        )
    _check_metadata(request.metadata or {})


def _check_word(value: str | None, allowed: "tuple[str, ...] | list[str]", place: str) -> None:
    if value is not None and value not in allowed:
        raise InvalidRequestError(
            f"{place} is {value[:40]!r}; it must be one of {', '.join(allowed)}", param=place
        )


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > _MAX_METADATA:
        raise InvalidRequestError(
            f"metadata has {len(metadata)} keys; the limit is {_MAX_METADATA}: send fewer", param="metadata"
        )
    for key, value in metadata.items():
        place = f"metadata.{key[:_MAX_METADATA_KEY]}"
        for what, text, limit in (("key", key, _MAX_METADATA_KEY), ("value", value, _MAX_METADATA_VALUE)):
            if len(text) > limit:
                raise InvalidRequestError(
                    f"{place}: its {what} has {len(text)} characters; the limit is {limit}", param=place
                )
