"""What may be asked of the HTTP face, route by route. A route that is not told here has its path alone.

A request's type is the endpoint's own, its `kind`, and is named here where the route reads it itself.
"""

from typing import Any

from atomesh.frontend.contract.answers import (
    ChatCompletion,
    Completion,
    DetokenizeAnswer,
    Load,
    ModelEntry,
    ModelList,
    Status,
    TokenizeAnswer,
    TokenizerInfo,
    Version,
)
from atomesh.frontend.contract.anthropic_answers import Message, TokenCount
from atomesh.frontend.contract.operation import GENERATING, READING, Operation, Operations

_TOKENIZING = tuple(status for status in GENERATING if status not in (500, 501, 504))
_KEPT = (400, *READING, 429)
_ANY = dict[str, Any]

OPERATIONS: Operations = {
    ("POST", "/v1/chat/completions"): Operation(
        "Answer a chat", "generation", answer=ChatCompletion, is_streamed=True, refusals=GENERATING
    ),
    ("POST", "/v1/completions"): Operation(
        "Continue a text", "generation", answer=Completion, is_streamed=True, refusals=GENERATING
    ),
    ("POST", "/v1/embeddings"): Operation(
        "Refused by models that generate text; passed on to a server that makes embeddings",
        "generation",
        refusals=GENERATING,
        has_success=False,
    ),
    ("POST", "/v1/messages"): Operation(
        "Answer a chat, as Anthropic has it",
        "generation",
        answer=Message,
        is_streamed=True,
        refusals=GENERATING,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "The tokens of a chat's prompt", "text", answer=TokenCount, refusals=_TOKENIZING
    ),
    ("POST", "/v1/responses"): Operation(
        "Answer a chat, and keep the answer", "generation", answer=_ANY, is_streamed=True, refusals=GENERATING
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "A kept answer", "generation", answer=_ANY, is_streamed=True, refusals=_KEPT
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        "Forget a kept answer", "generation", answer=_ANY, refusals=_KEPT
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        "End an answer in the background", "generation", answer=_ANY, refusals=_KEPT
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "What a kept answer answered", "generation", answer=_ANY, refusals=_KEPT
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "The tokens of a response's prompt", "text", answer=_ANY, refusals=_TOKENIZING
    ),
    ("POST", "/tokenize"): Operation(
        "The token ids of a text or a chat", "text", answer=TokenizeAnswer, refusals=_TOKENIZING
    ),
    ("POST", "/detokenize"): Operation(
        "The text of token ids", "text", answer=DetokenizeAnswer, refusals=_TOKENIZING
    ),
    ("GET", "/tokenizer_info"): Operation(
        "The tokenizer's special tokens and the chat template",
        "text",
        answer=TokenizerInfo,
        query={"model": str},
        refusals=(400, *READING),
    ),
    ("GET", "/v1/models"): Operation("The models that there are", "models", answer=ModelList),
    ("GET", "/v1/models/{id}"): Operation("One model", "models", answer=ModelEntry),
    ("GET", "/health"): Operation("200 while requests can be served", "status", answer=Status),
    ("GET", "/ready"): Operation("As /health", "status", answer=Status),
    ("GET", "/ping"): Operation("As /health", "status", answer=Status),
    ("POST", "/ping"): Operation("As /health", "status", answer=Status),
    ("GET", "/live"): Operation("200 while the process runs", "status", answer=Status),
    ("GET", "/version"): Operation("The program's version", "status", answer=Version),
    ("GET", "/load"): Operation("How many requests run and wait", "status", answer=Load),
    ("GET", "/metrics"): Operation("Metrics for Prometheus", "status", media_type="text/plain"),
    ("GET", "/openapi.json"): Operation("This document", "status", answer=dict, refusals=READING),
}
