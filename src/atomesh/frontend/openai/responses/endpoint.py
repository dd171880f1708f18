"""POST /v1/responses, and /v1/responses/input_tokens."""

from dataclasses import replace

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from atomesh.errors import InvalidRequestError
from atomesh.frontend.context import OWNER, Frontend
from atomesh.frontend.http.direct_body import NO_DIRECT_BODY
from atomesh.frontend.http.disconnect import ClientDisconnectedError
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.http.request_body import read_body
from atomesh.frontend.openai.call import Answering, Call, Plan, deadline
from atomesh.frontend.openai.chat_plan import encode_request
from atomesh.frontend.openai.endpoint import Endpoint, RequestDecoder
from atomesh.frontend.openai.responses.background import BackgroundRun, nowhere
from atomesh.frontend.openai.responses.event_log import LoggedRenderer, follow
from atomesh.frontend.openai.responses.kept_responses import KeptResponses
from atomesh.frontend.openai.responses.planning import PlannedResponse, plan_response, read_input
from atomesh.frontend.openai.responses.request import (
    PromptFields,
    ResponsesRequest,
    check_prompt_fields,
    check_request,
)
from atomesh.frontend.openai.responses.translation import in_words_of_responses, to_chat
from atomesh.frontend.text.text_pool import work_of
from atomesh.frontend.validation import refuse_internal_headers
from atomesh.observability.request_record import RequestRecord

OWN_FIELDS = frozenset({"tools", "tool_choice", "thinking_token_budget", "include_reasoning"})
_JSON = (b"content-type", b"application/json")


class Responses(Endpoint[ResponsesRequest]):
    path = "/v1/responses"
    own_fields = OWN_FIELDS

    def __init__(self, frontend: Frontend, kept: KeptResponses) -> None:
        super().__init__(frontend, ResponsesRequest)
        self._kept = kept

    async def _serve(self, call: Call, body: bytes) -> None:
        async with deadline(call):
            request = await self._decoder.decode(body)
            if request.is_stored:
                self._kept.check_size(len(body))
            planned = await self._plan_response(call, request)
        if request.background:
            await self._answer_in_background(call, planned)
        else:
            await self._answer(call, planned)

    async def _plan(self, call: Call, request: ResponsesRequest) -> Plan:
        planned = await self._plan_response(call, request)
        return planned.plan(planned.renderer, is_streamed=bool(request.stream))

    async def _plan_response(self, call: Call, request: ResponsesRequest) -> PlannedResponse:
        check_request(request)
        if request.background:
            self._kept.runs.check_room()
        before = await self._kept.recall(call.owner, request)
        return await plan_response(self._frontend, call, request, before)

    async def _answer(self, call: Call, planned: PlannedResponse) -> None:
        """A stored response is there for whoever asks for it as soon as the client has all of it."""
        renderer, is_stored = planned.renderer, planned.request.is_stored

        async def send(message: Message) -> None:
            if is_stored and _ends(message) and renderer.status in ("completed", "incomplete"):
                await self._kept.keep(planned.as_stored())
            await call.send(message)

        plan = planned.plan(renderer, is_streamed=bool(planned.request.stream))
        await Answering(self._frontend, replace(call, send=send), plan).run()
        if is_stored and renderer.status == "failed":
            await self._kept.keep(planned.as_stored())

    async def _answer_in_background(self, call: Call, planned: PlannedResponse) -> None:
        apart = replace(call, send=nowhere, direct=NO_DIRECT_BODY, record=RequestRecord())

        async def answer(renderer: LoggedRenderer) -> None:
            plan = planned.plan(renderer, is_streamed=True)
            await Answering(self._frontend, apart, plan).run()

        async def keep() -> None:
            await self._kept.keep(planned.as_stored())

        run = BackgroundRun(planned, answer, keep, call.counted)
        self._kept.runs.start(run)
        body = encode_json(run.body())
        await keep()
        call.record.model, call.record.answer_id = planned.chat.model.name, planned.renderer.id
        if planned.request.stream:
            await follow(run.log, 0, call.send, self._frontend.options)
        else:
            await _send_json(call.send, body)


def _ends(message: Message) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body", False)


async def _send_json(send: Send, body: bytes) -> None:
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class InputTokens:
    """The prompt's real size: it is rendered and tokenised as for an answer."""

    path = "/v1/responses/input_tokens"

    def __init__(self, frontend: Frontend, kept: KeptResponses) -> None:
        self.kind = PromptFields
        self._frontend = frontend
        self._kept = kept
        self._decoder = RequestDecoder(frontend, self.path, PromptFields, OWN_FIELDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refuse_internal_headers(headers)
        try:
            body = await read_body(headers, receive, self._frontend.options)
        except ClientDisconnectedError:
            return
        count = await self._count(scope, await self._decoder.decode(body))
        answer = encode_json({"object": "response.input_tokens", "input_tokens": count})
        await Response(answer, media_type="application/json")(scope, receive, send)

    async def _count(self, scope: Scope, request: PromptFields) -> int:
        check_prompt_fields(request)
        model = self._frontend.seen_from(scope).find_model(request.model)
        if model.is_relayed:
            raise InvalidRequestError(
                f"the tokens of {model.name!r} are another server's to count; ask for a model of this one",
                param="model",
            )
        before = await self._kept.recall(scope.get(OWNER, ""), request)
        texts = self._frontend.texts
        _, messages = await texts.run(work_of(request.input), lambda: read_input(request, before))
        with in_words_of_responses():
            chat = await texts.run(work_of(messages), lambda: to_chat(request, messages))
            return len(await encode_request(self._frontend, model, chat))
