"""POST /v1/messages and /v1/messages/count_tokens."""

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atomesh.errors import InvalidRequestError
from atomesh.frontend.anthropic.message_head import MessageHead
from atomesh.frontend.anthropic.message_renderer import MessageRenderer
from atomesh.frontend.anthropic.messages_request import MessagesRequest, PromptRequest
from atomesh.frontend.anthropic.own_words import in_own_words
from atomesh.frontend.anthropic.translate import to_chat_request, to_prompt
from atomesh.frontend.context import Frontend
from atomesh.frontend.http.disconnect import ClientDisconnectedError
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.http.request_body import read_body
from atomesh.frontend.openai.call import Call, Plan
from atomesh.frontend.openai.chat_plan import encode_request, plan_chat
from atomesh.frontend.openai.endpoint import Endpoint, RequestDecoder
from atomesh.frontend.text.text_pool import work_of
from atomesh.frontend.validation import refuse_internal_headers

_OWN_FIELDS = frozenset({"tools", "tool_choice"})  # of other types than OpenAI's


def count_parts(request: PromptRequest) -> int:
    """As work for the pool of texts."""
    return work_of(request.messages) + sum(work_of(message.content) for message in request.messages)


class Messages(Endpoint[MessagesRequest]):
    path = "/v1/messages"
    own_fields = _OWN_FIELDS

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend, MessagesRequest)

    async def _plan(self, call: Call, request: MessagesRequest) -> Plan:
        reasons = call.find_model(request.model).reasoning_dialect is not None
        parts = count_parts(request)
        asked = await self._frontend.texts.run(parts, lambda: to_chat_request(request, reasons=reasons))
        with in_own_words():
            chat = await plan_chat(self._frontend, call, asked, "msg_")
        head = MessageHead(chat.factory.answer_id, chat.model.name)
        renderer = MessageRenderer(request, head, chat.generation, chat.make_parser(), call.record.request_id)
        return Plan(chat.model, [chat.generation], renderer, bool(request.stream))


class CountTokens:
    """The prompt's real size: it is rendered and tokenised as for an answer."""

    path = "/v1/messages/count_tokens"

    def __init__(self, frontend: Frontend) -> None:
        self.kind = PromptRequest
        self._frontend = frontend
        self._decoder = RequestDecoder(frontend, self.path, PromptRequest, _OWN_FIELDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refuse_internal_headers(headers)
        try:
            body = await read_body(headers, receive, self._frontend.options)
        except ClientDisconnectedError:
            return
        request = await self._decoder.decode(body)
        model = self._frontend.seen_from(scope).find_model(request.model)
        if model.is_relayed:
            raise InvalidRequestError(
                f"the tokens of {model.name!r} are another server's to count; ask for a model of this one",
                param="model",
            )
        reasons = model.reasoning_dialect is not None
        parts = count_parts(request)
        prompt = await self._frontend.texts.run(parts, lambda: to_prompt(request, reasons=reasons))
        with in_own_words():
            token_ids = await encode_request(self._frontend, model, prompt)
        answer = encode_json({"input_tokens": len(token_ids)})
        await Response(answer, media_type="application/json")(scope, receive, send)
