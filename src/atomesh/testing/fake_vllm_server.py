"""A double of a vLLM server: its routes and the shapes of its answers, with scripted tokens.

As vLLM 0.32's `vllm/entrypoints/openai/completion` has them. Logprobs of token t: −t/100, and the tops are
t, t + 1 and so on, each −0.5 worse. A prefill leg is answered with `kv_transfer_params` that name it.
"""

import asyncio
import json
from typing import Any

from aiohttp import web

from atomesh.testing.fake_engine_server import FakeEngineServer, Speech

BLOCK_SIZE = 16
NUM_BLOCKS = 100


class FakeVllmServer(FakeEngineServer):
    """`hands_over`: whether it has a KV connector. `started_at` names its life."""

    def __init__(self, model: str, max_model_len: int = 512) -> None:
        super().__init__(model, max_model_len)
        self.hands_over = True
        self.started_at = 1_700_000_000.5
        self.kv_usage = 0.25

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/v1/models", self.models),
            web.get("/metrics", self.metrics),
            web.post("/v1/completions", self.complete),
        ]

    async def metrics(self, _request: web.Request) -> web.Response:
        labels = f'{{engine="0",model_name="{self.model}"}}'
        config = f'{{block_size="{BLOCK_SIZE}",engine="0",num_gpu_blocks="{NUM_BLOCKS}"}}'
        lines = [
            f"process_start_time_seconds {self.started_at}",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{labels} {float(self.running)}",
            f"vllm:num_requests_waiting{labels} {float(self.waiting)}",
            f"vllm:kv_cache_usage_perc{labels} {self.kv_usage}",
            f"vllm:prefix_cache_queries_total{labels} 320.0",
            f"vllm:prefix_cache_hits_total{labels} 64.0",
            f"vllm:generation_tokens_total{labels} 1.5e+03",
            f"vllm:cache_config_info{config} 1.0",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body, speech = await self.hear(request)
        if speech.status != 200:
            error = {
                "message": speech.message,
                "type": "BadRequestError",
                "param": None,
                "code": speech.status,
            }
            return web.json_response({"error": error}, status=speech.status)
        try:
            return await (self._stream if body.get("stream") else self._whole)(request, body, speech)
        except (ConnectionResetError, asyncio.CancelledError):
            self.left += 1
            raise

    async def _whole(self, request: web.Request, body: dict[str, Any], speech: Speech) -> web.Response:
        tokens = [token async for token in self.steps(speech, request)][: body["max_tokens"]]
        choices = [
            {
                **_choice(index, tokens, body, speech.finish, speech.stop_token),
                "prompt_logprobs": _prompt_logprobs(body),
            }
            for index in range(body["n"])
        ]
        return web.json_response(
            {"choices": choices, "usage": _usage(speech), "kv_transfer_params": self._params(body)}
        )

    async def _stream(self, request: web.Request, body: dict[str, Any], speech: Speech) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        said = [token async for token in self._said(request, response, body, speech)]
        if speech.error_after:
            error = {"message": speech.message, "type": "InternalServerError", "code": 500}
            await response.write(_frame({"error": error}))
        else:
            for index in range(body["n"]):
                await response.write(_frame(_end(index, said, body, speech)))
            if body.get("stream_options", {}).get("include_usage"):
                await response.write(_frame({"choices": [], "usage": _usage(speech)}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _said(
        self, request: web.Request, response: web.StreamResponse, body: dict[str, Any], speech: Speech
    ) -> Any:
        """All but the last token go at once, one a chunk; the last goes with the finish."""
        last: int | None = None
        async for token in self.steps(speech, request):
            if last is not None:
                for index in range(body["n"]):
                    await response.write(_frame({"choices": [_choice(index, [last], body)]}))
            last = token
        if last is not None:
            yield last

    def _params(self, body: dict[str, Any]) -> dict[str, Any] | None:
        asked = body.get("kv_transfer_params") or {}
        if not self.hands_over or not asked.get("do_remote_decode"):
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2]],
            "remote_engine_id": self.url,
            "remote_request_id": f"cmpl-{len(self.bodies)}",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
        }


def logprob(token: int) -> float:
    return -token / 100


def _end(index: int, said: list[int], body: dict[str, Any], speech: Speech) -> dict[str, Any]:
    return {"choices": [_choice(index, said, body, speech.finish, speech.stop_token)]}


def _choice(
    index: int,
    tokens: list[int],
    body: dict[str, Any],
    finish: str | None = None,
    stop: int | None = None,
) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "text": "?" * len(tokens),
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": stop,
    }
    if body.get("return_token_ids"):
        choice["token_ids"] = tokens
    if body.get("logprobs") is not None:
        name = "token_id:{}".format if body.get("return_tokens_as_token_ids") else "<{}>".format
        choice["logprobs"] = {
            "tokens": [name(token) for token in tokens],
            "token_logprobs": [logprob(token) for token in tokens],
            "top_logprobs": [
                {name(token + i): logprob(token) - 0.5 * i for i in range(max(body["logprobs"], 1))}
                for token in tokens
            ],
            "text_offset": list(range(len(tokens))),
        }
    return choice


def _prompt_logprobs(body: dict[str, Any]) -> list[dict[str, Any] | None] | None:
    if body.get("prompt_logprobs") is None:
        return None
    entries = [
        {str(token): {"logprob": logprob(token), "rank": 1, "decoded_token": "?"}} for token in body["prompt"]
    ]
    return [None, *entries[1:]]


def _usage(speech: Speech) -> dict[str, Any]:
    return {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": speech.cached},
    }


def _frame(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()
