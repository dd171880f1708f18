"""From Anthropic's request to the chat request that has the same prompt and the same answer."""

from typing import Any

from atomesh.frontend.anthropic.conversation import chat_messages, continues, system_message
from atomesh.frontend.anthropic.messages_request import (
    MessagesRequest,
    PromptRequest,
    check_messages_request,
    check_prompt_request,
)
from atomesh.frontend.anthropic.output import output_fields
from atomesh.frontend.anthropic.thinking import thinking_fields
from atomesh.frontend.anthropic.tools import tool_fields
from atomesh.frontend.openai.chat_request import ChatRequest


def to_chat_request(request: MessagesRequest, *, reasons: bool = False) -> ChatRequest:
    """`reasons`: its model does. Raises InvalidRequestError, in the words of the request as it came."""
    check_messages_request(request)
    user = None if request.metadata is None else request.metadata.user_id
    return ChatRequest(
        **_prompt_fields(request, reasons=reasons),
        max_tokens=request.max_tokens,
        stop=request.stop_sequences,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stream=request.stream,
        user=user,
        prompt_cache_key=user,
    )


def to_prompt(request: PromptRequest, *, reasons: bool = False) -> ChatRequest:
    """For its prompt alone."""
    return ChatRequest(**_prompt_fields(request, reasons=reasons))


def _prompt_fields(request: PromptRequest, *, reasons: bool) -> dict[str, Any]:
    check_prompt_request(request)
    return {
        "model": request.model,
        "messages": [*system_message(request.system), *chat_messages(request.messages)],
        "continue_final_message": continues(request.messages),
        **tool_fields(request.tools, request.tool_choice),
        **output_fields(request.output_config, request.output_format),
        **thinking_fields(request.thinking, request.output_config, reasons=reasons),
    }
