"""From a chat request to a generation that can run, for every API that carries chats."""

from collections.abc import Callable
from dataclasses import dataclass

from atomesh.frontend.answer.answer_parser import AnswerParser
from atomesh.frontend.context import Frontend
from atomesh.frontend.generation import Generation
from atomesh.frontend.openai.call import Call
from atomesh.frontend.openai.chat_prompt import ChatPrompt, encode_chat
from atomesh.frontend.openai.chat_reasoning import check_reasoning, plan_chat_reasoning
from atomesh.frontend.openai.chat_request import ChatRequest, parse_chat_sampling
from atomesh.frontend.openai.chat_tools import chat_grammar, plan_chat_tools, tool_use
from atomesh.frontend.openai.generation_factory import (
    GenerationFactory,
    check_prompt_ids,
    count_kept,
    make_factory,
    truncate,
)
from atomesh.frontend.openai.sampling_fields import check_answers
from atomesh.frontend.reasoning.reasoning_plan import Constraint
from atomesh.frontend.reasoning.reasoning_request import template_variables
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.tool_calls.tool_plan import ToolPlan
from atomesh.frontend.tool_calls.tools import ToolUse
from atomesh.protocol.grammar import GrammarSpec


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """`make_parser` makes what reads one choice's text; `factory` knows the answer's id and head."""

    model: ServedModel
    factory: GenerationFactory
    generation: Generation
    make_parser: Callable[[], AnswerParser]


async def plan_chat(frontend: Frontend, call: Call, request: ChatRequest, id_prefix: str) -> ChatPlan:
    """Everything that can refuse the request, before anything runs; the answer's id begins with `id_prefix`.

    Raises AtomeshError.
    """
    model = call.find_model(request.model)
    description = model.service.describe()
    params = parse_chat_sampling(request, model.sampling_defaults)
    check_answers(1, params.n, frontend.options)
    asked = check_reasoning(model, request)
    factory = await make_factory(frontend, id_prefix, model, params, request, call.policy)
    tools = plan_chat_tools(model, request)
    factory = factory.showing(tools.shown_tokens)
    factory = factory.obeying(await chat_grammar(frontend, model, request, tools))
    token_ids = await _encode(frontend, model, request, tools.use)
    reasoning = plan_chat_reasoning(
        model, request, asked, token_ids, tools, _constraint(tools, factory.shared.grammar)
    )
    factory = factory.reading(reasoning)
    factory.check_size([min(len(token_ids), description.max_model_len)])
    make_parser = reasoning.around(tools.make_parser)
    return ChatPlan(model, factory, factory.make(0, token_ids, "messages"), make_parser)


def _constraint(tools: ToolPlan, grammar: GrammarSpec | None) -> Constraint:
    if grammar is None:
        return Constraint.NONE
    return Constraint.CALL if tools.use.callable else Constraint.ANSWER


async def encode_request(frontend: Frontend, model: ServedModel, request: ChatRequest) -> list[int]:
    """The prompt that the chat comes to. Raises InvalidRequestError or ContextLengthError."""
    return await _encode(frontend, model, request, tool_use(request))


async def _encode(frontend: Frontend, model: ServedModel, request: ChatRequest, use: ToolUse) -> list[int]:
    description = model.service.describe()
    kept = count_kept(request.truncate_prompt_tokens, description.max_model_len)
    prompt = ChatPrompt(
        request.messages,
        request.add_generation_prompt,
        request.continue_final_message,
        request.add_special_tokens,
        template_variables(request, model.reasoning_dialect),
        is_truncated=kept is not None,
        tools=use.shown,
    )
    token_ids = await encode_chat(frontend, model, prompt)
    token_ids = truncate(token_ids, request.truncate_prompt_tokens, description.max_model_len)
    check_prompt_ids(token_ids, description.vocab_size, "messages")
    return token_ids
