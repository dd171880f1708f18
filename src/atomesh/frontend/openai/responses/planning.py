"""From a request and the conversation before it to an answer that can run."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import time

from atomesh.errors import ContextLengthError, InvalidRequestError
from atomesh.frontend.context import Frontend
from atomesh.frontend.openai.call import Call, Plan
from atomesh.frontend.openai.chat_plan import ChatPlan, plan_chat
from atomesh.frontend.openai.generation_factory import mint_id
from atomesh.frontend.openai.renderer import Renderer
from atomesh.frontend.openai.responses.conversation import (
    Message,
    count_droppable,
    to_messages,
    without_oldest,
)
from atomesh.frontend.openai.responses.items import Item, Remembered, parse_input
from atomesh.frontend.openai.responses.renderer import Asked, ResponseRenderer
from atomesh.frontend.openai.responses.request import (
    LOGPROBS,
    SEALED_REASONING,
    PromptFields,
    ResponsesRequest,
)
from atomesh.frontend.openai.responses.response_body import ResponseHead, repeated_fields
from atomesh.frontend.openai.responses.stored_response import StoredResponse
from atomesh.frontend.openai.responses.translation import in_words_of_responses, to_chat
from atomesh.frontend.text.text_pool import work_of

_ROOM_FOR_ANSWER = 1024  # tokens, where a truncated conversation's request does not say


@dataclass(frozen=True, slots=True)
class PlannedResponse:
    """`items` are the input's own."""

    owner: str
    request: ResponsesRequest
    items: list[Item]
    chat: ChatPlan
    renderer: ResponseRenderer

    def plan(self, renderer: Renderer, *, is_streamed: bool) -> Plan:
        return Plan(self.chat.model, [self.chat.generation], renderer, is_streamed)

    def as_stored(self) -> StoredResponse:
        """As it stands."""
        return StoredResponse(self.owner, self.renderer.body(), self.items)


async def plan_response(
    frontend: Frontend, call: Call, request: ResponsesRequest, before: Remembered
) -> PlannedResponse:
    """Everything that can refuse the request, before anything runs. Raises AtomeshError."""
    parts = work_of(request.input)
    items, messages = await frontend.texts.run(parts, lambda: read_input(request, before))
    with in_words_of_responses():
        chat = await _plan_chat(frontend, call, request, messages)
    head = ResponseHead(chat.factory.answer_id, int(time()), chat.model.name)
    asked = Asked(
        repeated=repeated_fields(head, request, chat.factory.params),
        wants_logprobs=request.includes(LOGPROBS) or bool(request.top_logprobs),
        seals_reasoning=request.includes(SEALED_REASONING),
        is_stored=request.is_stored,
    )
    renderer = ResponseRenderer(asked, chat.generation, chat.model.tokenizer, chat.make_parser)
    return PlannedResponse(call.owner, request, items, chat, renderer)


def read_input(request: PromptFields, before: Remembered) -> tuple[list[Item], list[Message]]:
    """The input's own items, and the messages of the whole conversation under this request's instructions.

    Raises InvalidRequestError.
    """
    items = parse_input(request.input, mint_id, before)
    messages = to_messages([*before.conversation, *items])
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    if not messages:
        raise InvalidRequestError("input is missing or empty; send a text or items", param="input")
    return items, messages


async def _plan_chat(
    frontend: Frontend, call: Call, request: ResponsesRequest, messages: Sequence[Message]
) -> ChatPlan:
    try:
        chat = await frontend.texts.run(work_of(messages), lambda: to_chat(request, messages))
        return await plan_chat(frontend, call, chat, "resp_")
    except ContextLengthError:
        if request.truncation != "auto":
            raise
        plan = await _plan_truncated(frontend, call, request, messages)
        if plan is None:
            raise
        return plan


async def _plan_truncated(
    frontend: Frontend, call: Call, request: ResponsesRequest, messages: Sequence[Message]
) -> ChatPlan | None:
    """Without as few of the oldest messages as make room for an answer; None where the last is too long."""
    found: ChatPlan | None = None
    fewest, most = 1, count_droppable(messages)
    while fewest <= most:
        count = (fewest + most) // 2
        plan = await _plan_if_it_fits(frontend, call, request, without_oldest(messages, count))
        if plan is None:
            fewest = count + 1
        else:
            found, most = plan, count - 1
    return found


async def _plan_if_it_fits(
    frontend: Frontend, call: Call, request: ResponsesRequest, messages: Sequence[Message]
) -> ChatPlan | None:
    try:
        plan = await plan_chat(frontend, call, to_chat(request, messages), "resp_")
    except ContextLengthError:
        return None
    context = plan.factory.description.max_model_len
    room = min(request.max_output_tokens or _ROOM_FOR_ANSWER, context // 4)
    return plan if len(plan.generation.request.prompt_token_ids) + room <= context else None
