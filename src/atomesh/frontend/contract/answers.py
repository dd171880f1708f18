"""What answers look like, for the OpenAPI document; further fields may stand beside those named."""

from typing import Any, Literal

import msgspec

from atomesh.frontend.logprobs import ChatTokenLogprob, CompletionLogprobs, RankedLogprob
from atomesh.frontend.usage import Usage

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
PromptLogprobs = list[dict[str, RankedLogprob] | None]


class ErrorDetail(msgspec.Struct):
    """`param` is the JSON path of the field that is wrong, `code` a stable word, or a status on a stream."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


class CalledFunction(msgspec.Struct):
    """`arguments` is JSON text."""

    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[AnswerToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatLogprobs(msgspec.Struct):
    content: list[ChatTokenLogprob]
    refusal: None


class ChatChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    timings: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    serving_path: str | msgspec.UnsetType | None = msgspec.UNSET
    explain: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    serving_path: str | msgspec.UnsetType | None = msgspec.UNSET
    explain: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class TokenizeAnswer(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(msgspec.Struct):
    prompt: str


class ModelEntry(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None


class ModelList(msgspec.Struct):
    object: Literal["list"]
    data: list[ModelEntry]


class Status(msgspec.Struct):
    status: str


class Version(msgspec.Struct):
    version: str


class Load(msgspec.Struct):
    """`server_load` is what runs and what waits."""

    server_load: int
    running: int
    waiting: int


class TokenizerInfo(msgspec.Struct):
    """As vLLM has it: what a client needs to tokenise through /tokenize and to render chats itself."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    additional_special_tokens: list[str]
    chat_template: str | None
