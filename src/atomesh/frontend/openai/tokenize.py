"""POST /tokenize and /detokenize, as vLLM has them, under the same refusals as what they tokenise for."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atomesh.errors import InvalidRequestError
from atomesh.frontend.context import Frontend
from atomesh.frontend.http.disconnect import ClientDisconnectedError
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.http.request_body import read_body
from atomesh.frontend.logprobs import token_text
from atomesh.frontend.openai.chat_prompt import ChatPrompt, encode_chat
from atomesh.frontend.openai.chat_request import ChatMessage
from atomesh.frontend.openai.endpoint import RequestDecoder
from atomesh.frontend.openai.generation_factory import check_prompt_ids
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.tool_calls.tools import Tool, plan_tool_use
from atomesh.frontend.validation import refuse_internal_headers


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]
    model: str | None = None


_OWN_FIELDS = frozenset({"tools", "tool_choice"})
R = TypeVar("R", TokenizeRequest, DetokenizeRequest)


class _TextEndpoint(ABC, Generic[R]):
    """An ASGI application for a route that answers by the tokenizer alone; `kind` is its requests' type."""

    def __init__(self, frontend: Frontend, path: str, kind: type[R]) -> None:
        self.kind: type[R] = kind
        self._frontend = frontend
        self._decoder: RequestDecoder[R] = RequestDecoder(frontend, path, kind, _OWN_FIELDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refuse_internal_headers(headers)
        try:
            body = await read_body(headers, receive, self._frontend.options)
        except ClientDisconnectedError:
            return
        request = await self._decoder.decode(body)
        answer = await self._answer(self._frontend.seen_from(scope).find_model(request.model), request)
        await Response(encode_json(answer), media_type="application/json")(scope, receive, send)

    @abstractmethod
    async def _answer(self, model: ServedModel, request: R) -> dict[str, Any]: ...


class Tokenize(_TextEndpoint[TokenizeRequest]):
    """`prompt` is encoded with special tokens unless told otherwise, `messages` through the chat template."""

    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend, "/tokenize", TokenizeRequest)

    async def _answer(self, model: ServedModel, request: TokenizeRequest) -> dict[str, Any]:
        max_model_len = model.service.describe().max_model_len
        tokens = await self._encode(model, request, max_model_len)
        strings = (
            [token_text(model.tokenizer, token) for token in tokens] if request.return_token_strs else None
        )
        return {
            "count": len(tokens),
            "max_model_len": max_model_len,
            "tokens": tokens,
            "token_strs": strings,
        }

    async def _encode(self, model: ServedModel, request: TokenizeRequest, max_model_len: int) -> list[int]:
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequestError("send either prompt or messages", param="prompt")
        if request.messages is not None:
            prompt = ChatPrompt(
                request.messages,
                request.add_generation_prompt,
                request.continue_final_message,
                request.add_special_tokens,
                request.chat_template_kwargs,
                tools=plan_tool_use(request.tools, request.tool_choice, None).shown,
            )
            return await encode_chat(self._frontend, model, prompt)
        text, adds = request.prompt or "", request.add_special_tokens is not False
        self._frontend.bounds.check_characters(len(text), model.tokenizer, max_model_len)
        return await self._frontend.texts.run(
            len(text), lambda: model.tokenizer.encode(text, add_special_tokens=adds)
        )


class Detokenize(_TextEndpoint[DetokenizeRequest]):
    def __init__(self, frontend: Frontend) -> None:
        super().__init__(frontend, "/detokenize", DetokenizeRequest)

    async def _answer(self, model: ServedModel, request: DetokenizeRequest) -> dict[str, Any]:
        tokens = request.tokens
        if tokens:
            check_prompt_ids(tokens, model.service.describe().vocab_size, "tokens")
        text = await self._frontend.texts.run(len(tokens), lambda: model.tokenizer.decode(tokens))
        return {"prompt": text}
