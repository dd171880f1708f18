"""A double of an SGLang server: POST /generate and what it says of itself, with scripted tokens.

As SGLang's `TokenizerManager` has it: streamed ids and logprobs come whole every time, or with
`is_incremental` only the new ones. Logprobs are those of the double of vLLM. A prefill server answers when
its decode server has come to the same bootstrap room.
"""

import asyncio
import json
from collections import defaultdict
from typing import Any

from aiohttp import web

from atomesh.testing.fake_engine_server import FakeEngineServer, Speech
from atomesh.testing.fake_vllm_server import logprob

NUM_TOKENS = 1600


class Rooms:
    """Where the halves of pairs meet: what the engines do between themselves."""

    def __init__(self) -> None:
        self._arrivals: defaultdict[int, set[str]] = defaultdict(set)
        self._changed = asyncio.Condition()

    async def meet(self, room: int, role: str) -> None:
        async with self._changed:
            self._arrivals[room].add(role)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: len(self._arrivals[room]) == 2)


class FakeSglangServer(FakeEngineServer):
    def __init__(
        self, model: str, max_model_len: int = 512, role: str = "unified", rooms: Rooms | None = None
    ) -> None:
        super().__init__(model, max_model_len)
        self.is_incremental = False
        self.has_metrics = True
        self.page_size = 1
        self.kv_cache_dtype = "auto"
        self._role = role
        self._rooms = rooms or Rooms()

    def routes(self) -> list[web.RouteDef]:
        metrics = [web.get("/metrics", self.metrics)] if self.has_metrics else []
        return [
            web.get("/health", self.health),
            web.get("/v1/models", self.models),
            web.get("/get_server_info", self.server_info),
            web.post("/generate", self.generate),
            *metrics,
        ]

    async def server_info(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": self.model,
                "served_model_name": self.model,
                "tokenizer_path": self.model,
                "context_length": None,
                "max_total_num_tokens": NUM_TOKENS,
                "max_running_requests": 8,
                "page_size": self.page_size,
                "kv_cache_dtype": self.kv_cache_dtype,
                "disaggregation_mode": "null" if self._role == "unified" else self._role,
                "version": "0.5.13",
            }
        )

    async def metrics(self, _request: web.Request) -> web.Response:
        labels = f'{{model_name="{self.model}"}}'
        lines = [
            f"sglang:num_running_reqs{labels} {float(self.running)}",
            f"sglang:num_queue_reqs{labels} {float(self.waiting)}",
            f"sglang:token_usage{labels} 0.25",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body, speech = await self.hear(request)
        if speech.status != 200:
            return web.json_response({"error": {"message": speech.message}}, status=speech.status)
        try:
            if self._role != "unified":
                await self._rooms.meet(body["bootstrap_room"], self._role)
            return await (self._stream if body.get("stream") else self._whole)(request, body, speech)
        except (ConnectionResetError, asyncio.CancelledError):
            self.left += 1
            raise

    async def _whole(self, request: web.Request, body: dict[str, Any], speech: Speech) -> web.Response:
        tokens = [token async for token in self.steps(speech, request)]
        num = body["sampling_params"]["n"]
        answers = [_answer(index, tokens, len(tokens), body, speech) for index in range(num)]
        return web.json_response(answers if num > 1 else answers[0])

    async def _stream(self, request: web.Request, body: dict[str, Any], speech: Speech) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        total = sum(isinstance(step, int) for step in speech.tokens)
        tokens: list[int] = []
        async for token in self.steps(speech, request):
            tokens.append(token)
            shown = [token] if self.is_incremental else tokens
            if speech.error_after and len(tokens) == total:
                break
            ending = speech if len(tokens) == total else None
            for index in range(body["sampling_params"]["n"]):
                await response.write(_frame(_answer(index, shown, len(tokens), body, ending, speech.cached)))
        if speech.error_after:
            aborted = _answer(0, tokens, len(tokens), body, None)
            aborted["meta_info"]["finish_reason"] = {
                "type": "abort",
                "message": speech.message,
                "status_code": 500,
            }
            await response.write(_frame(aborted))
        await response.write(b"data: [DONE]\n\n")
        return response


def _answer(
    index: int,
    shown: list[int],
    num_tokens: int,
    body: dict[str, Any],
    ending: Speech | None,
    cached: int = 0,
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": body["rid"],
        "finish_reason": None if ending is None else _finish(ending, num_tokens),
        "prompt_tokens": len(body["input_ids"]),
        "completion_tokens": num_tokens,
        "cached_tokens": cached if ending is None else ending.cached,
    }
    if body.get("return_logprob"):
        tops = range(body["top_logprobs_num"])
        meta["output_token_logprobs"] = [[logprob(token), token, None] for token in shown]
        meta["output_top_logprobs"] = [
            [[logprob(token) - 0.5 * i, token + i, None] for i in tops] for token in shown
        ]
        if body["logprob_start_len"] == 0:
            entries = [[logprob(token), token, None] for token in body["input_ids"]]
            meta["input_token_logprobs"] = [[None, body["input_ids"][0], None], *entries[1:]]
            meta["input_top_logprobs"] = [None, *([entry] for entry in entries[1:])]
    return {"text": "?", "output_ids": shown, "meta_info": meta, "index": index}


def _finish(speech: Speech, num_tokens: int) -> dict[str, Any]:
    if speech.finish == "length":
        return {"type": "length", "length": num_tokens}
    return {"type": "stop", "matched": speech.stop_token}


def _frame(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()
