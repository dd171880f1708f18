"""What of a chat concerns its reasoning: from the request and the end of its prompt to a plan."""

from collections.abc import Sequence

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.chat_request import ChatMessage, ChatRequest
from atomesh.frontend.reasoning.dialect import AnswerStart
from atomesh.frontend.reasoning.reasoning_plan import (
    NO_REASONING,
    Constraint,
    ReasoningPlan,
    plan_reasoning,
)
from atomesh.frontend.reasoning.reasoning_request import ReasoningRequest, read_reasoning_request
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.tool_calls.tool_plan import ToolPlan

_PROMPT_END = 64  # tokens, or characters, in which a template opens an answer


def check_reasoning(model: ServedModel, request: ChatRequest) -> ReasoningRequest:
    """Before anything is rendered. Raises InvalidRequestError."""
    asked = read_reasoning_request(request, model.reasoning_dialect)
    if asked.is_hidden and model.reasoning_dialect is not None:
        for name in ("logprobs", "return_token_ids"):
            if getattr(request, name):
                raise InvalidRequestError(
                    f"{name} would tell the reasoning that include_reasoning: false is to hide; "
                    "remove one of the two",
                    param=name,
                )
    return asked


def plan_chat_reasoning(
    model: ServedModel,
    request: ChatRequest,
    asked: ReasoningRequest,
    token_ids: Sequence[int],
    tools: ToolPlan,
    constraint: Constraint,
) -> ReasoningPlan:
    """For the prompt `token_ids`. Raises InvalidRequestError."""
    dialect = model.reasoning_dialect
    if dialect is None:
        return NO_REASONING
    is_continued = bool(request.continue_final_message)
    size = _PROMPT_END + (_size(request.messages[-1]) if is_continued else 0)
    prompt_end = model.tokenizer.decode(token_ids[-size:])[-size:]
    opening = dialect.find_opening(prompt_end, is_continued=is_continued)
    start = AnswerStart(prompt_end, opening, tools.use.callable, tools.mint_id)
    plan = plan_reasoning(dialect, asked, start, model.tokenizer, constraint)
    if plan.spec is not None:
        _check_ids(plan, model)
    return plan


def _size(message: ChatMessage) -> int:
    """Of its text, in characters, of which a token has at least one; a template may trim or join."""
    content = message.content
    if content is None or isinstance(content, str):
        return len(content or "")
    return sum(len(part.text or part.refusal or "") + 1 for part in content)


def _check_ids(plan: ReasoningPlan, model: ServedModel) -> None:
    spec, vocab_size = plan.spec, model.service.describe().vocab_size
    if spec is not None and max((*spec.start, *spec.end, *spec.then), default=0) >= vocab_size:
        raise InvalidRequestError(
            f"the reasoning of {model.name!r} cannot be limited: its tags are none of the model's "
            f"{vocab_size} tokens; leave the limit out",
            param="thinking_token_budget",
        )
