"""POST /v1/chat/completions."""

from atomesh.frontend.context import Frontend
from atomesh.frontend.openai.call import Call, Plan
from atomesh.frontend.openai.chat_plan import plan_chat
from atomesh.frontend.openai.chat_renderer import ChatRenderer
from atomesh.frontend.openai.chat_request import ChatRequest
from atomesh.frontend.openai.endpoint import Endpoint


class ChatCompletions(Endpoint[ChatRequest]):
    path = "/v1/chat/completions"
    own_fields = frozenset(
        {"reasoning_effort", "thinking_token_budget", "include_reasoning", "tools", "tool_choice"}
    )

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend, ChatRequest)

    async def _plan(self, call: Call, request: ChatRequest) -> Plan:
        chat = await plan_chat(self._frontend, call, request, "chatcmpl")
        head = chat.factory.head("chat.completion.chunk" if request.stream else "chat.completion")
        renderer = ChatRenderer(request, head, chat.generation, chat.model.tokenizer, chat.make_parser)
        return Plan(chat.model, [chat.generation], renderer, bool(request.stream))
