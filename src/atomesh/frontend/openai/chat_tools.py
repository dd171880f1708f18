"""What of a chat concerns its tools: from the request to a plan, and to what the answer must obey."""

from collections.abc import Sequence
from typing import Any

import msgspec

from atomesh.errors import InvalidRequestError
from atomesh.frontend.context import Frontend
from atomesh.frontend.http.misfit import misfit
from atomesh.frontend.openai.chat_request import ChatRequest
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.structured_output.compiling import compile_grammar, requested_grammar
from atomesh.frontend.tool_calls.lark_rules import calls_grammar
from atomesh.frontend.tool_calls.registry import load_dialect
from atomesh.frontend.tool_calls.tool_plan import ToolPlan, plan_tools
from atomesh.frontend.tool_calls.tools import Tool, ToolUse, plan_tool_use
from atomesh.protocol.grammar import GrammarSpec


def tool_use(request: ChatRequest) -> ToolUse:
    """Raises InvalidRequestError."""
    return plan_tool_use(_typed(request.tools), request.tool_choice, request.parallel_tool_calls)


def plan_chat_tools(model: ServedModel, request: ChatRequest) -> ToolPlan:
    """Raises InvalidRequestError."""
    hides = request.skip_special_tokens is not False
    use = tool_use(request)
    return plan_tools(load_dialect(model.tool_dialect), use, model.tokenizer, hides_special_tokens=hides)


def _typed(tools: Sequence[Tool | dict[str, Any]] | None) -> list[Tool]:
    """Other APIs translate theirs to plain objects."""
    try:
        return msgspec.convert(tools or [], list[Tool])
    except msgspec.ValidationError as error:
        raise misfit(error, root="tools") from None


async def chat_grammar(
    frontend: Frontend, model: ServedModel, request: ChatRequest, tools: ToolPlan
) -> GrammarSpec | None:
    """What the answer must obey, compiled: what the request asks for, or calls, or either of the two.

    Raises InvalidRequestError.
    """
    asked = await requested_grammar(frontend, model, request)
    if asked is None or not tools.use.callable:
        return (
            asked if tools.grammar is None else await compile_grammar(frontend, model, tools.grammar, "tools")
        )
    if tools.grammar is not None or asked.kind != "json_schema":
        raise InvalidRequestError(
            "tools cannot be called in an answer that is held to another form; set tool_choice to 'none', or "
            "remove response_format and structured_outputs",
            param="tool_choice",
        )
    dialect, special = load_dialect(model.tool_dialect), model.tokenizer.special_tokens
    either = calls_grammar(dialect, tools.use, special, otherwise=msgspec.json.decode(asked.source))
    return await compile_grammar(frontend, model, GrammarSpec(kind="lark", source=either), "tools")
