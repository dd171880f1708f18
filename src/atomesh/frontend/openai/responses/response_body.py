"""The `response` object: what it repeats of the request, and what changes while it is answered."""

from dataclasses import dataclass
from typing import Any, Literal

from atomesh.errors import AtomeshError
from atomesh.frontend.generation import Generation
from atomesh.frontend.openai.responses.items import Item
from atomesh.frontend.openai.responses.request import PromptFields, ResponsesRequest, Tool, ToolChoice
from atomesh.protocol.sampling import SamplingParams

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Body = dict[str, Any]

LIVE: tuple[Status, ...] = ("queued", "in_progress")


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """`created_at` is in Unix seconds; `model` is the served one's name."""

    id: str
    created_at: int
    model: str


def repeated_fields(head: ResponseHead, request: ResponsesRequest, params: SamplingParams) -> Body:
    """What is the same in every state of the response; sampling as it was settled."""
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created_at,
        "status": "in_progress",
        "background": bool(request.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": head.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": _reasoning(request),
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.is_stored,
        "temperature": params.temperature,
        "text": _text(request),
        "tool_choice": _tool_choice(request.tool_choice),
        "tools": [_tool(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
        "metadata": request.metadata or {},
    }


def _reasoning(request: PromptFields) -> Body:
    wanted = request.reasoning
    if wanted is None:
        return {"effort": None, "summary": None}
    return {"effort": wanted.effort, "summary": wanted.summary or wanted.generate_summary}


def _text(request: PromptFields) -> Body:
    wanted = request.text
    verbosity = (wanted and wanted.verbosity) or "medium"
    if wanted is None or wanted.format is None or wanted.format.type != "json_schema":
        kind = "text" if wanted is None or wanted.format is None else wanted.format.type
        return {"format": {"type": kind}, "verbosity": verbosity}
    asked = wanted.format
    schema = {
        "type": "json_schema",
        "description": asked.description,
        "name": asked.name or "response",
        "schema": asked.schema,
        "strict": bool(asked.strict),
    }
    return {"format": schema, "verbosity": verbosity}


def _tool(tool: Tool) -> Body:
    return {
        "type": tool.type,
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def _tool_choice(choice: str | ToolChoice | None) -> str | Body:
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    if choice.type == "function":
        return {"type": "function", "name": choice.name}
    tools = [{"type": tool.type, "name": tool.name} for tool in choice.tools or ()]
    return {"type": choice.type, "mode": choice.mode, "tools": tools}


def usage(generation: Generation, reasoning_tokens: int) -> Body:
    input_tokens, output_tokens = len(generation.request.prompt_token_ids), generation.completion_tokens
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": generation.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": input_tokens + output_tokens,
    }


def response_error(error: AtomeshError) -> Body:
    """In the words that a response's `error.code` may have."""
    code = {429: "rate_limit_exceeded", 400: "invalid_prompt"}.get(error.status, "server_error")
    return {"code": code, "message": error.message}


def output_of(body: Body) -> list[Item]:
    """What of an answer later turns read."""
    output: list[Item] = body["output"]
    return output
