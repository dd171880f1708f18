"""A double of a vLLM server: its routes and the shapes of its answers, with scripted tokens.

As a live vLLM 0.32 answers, also where it refuses. Logprobs of token t: −t/100, and the tops are t, t + 1 and
so on, each −0.5 worse. A prefill leg is answered with `kv_transfer_params` that name it.
"""

import asyncio
import json
from typing import Any

from aiohttp import web

from atomesh.testing.fake_engine_server import FakeEngineServer, Speech

BLOCK_SIZE = 16
NUM_BLOCKS = 100
TIMES = {"queue_time_ms": 250.0, "time_to_first_token_ms": 500.0, "mean_itl_ms": None}


class FakeVllmServer(FakeEngineServer):
    """`hands_over`: whether it has a KV connector. `started_at` names its life.

    `tells_times` and `tells_cached`: `--enable-per-request-metrics` and `--enable-prompt-tokens-details`.
    """

    def __init__(self, model: str, max_model_len: int = 512) -> None:
        super().__init__(model, max_model_len)
        self.hands_over = True
        self.started_at = 1_700_000_000.5
        self.kv_usage = 0.25
        self.tells_times = True
        self.tells_cached = True
        self.block_size = BLOCK_SIZE
        self.cache_dtype = "auto"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/v1/models", self.models),
            web.get("/metrics", self.metrics),
            web.post("/v1/completions", self.complete),
        ]

    async def metrics(self, _request: web.Request) -> web.Response:
        labels = f'{{engine="0",model_name="{self.model}"}}'
        config = (
            f'{{_block_size_resolved="True",block_size="{self.block_size}",'
            f'cache_dtype="{self.cache_dtype}",engine="0",hash_block_size="None",'
            f'kv_cache_dtype_skip_layers="[]",num_cpu_blocks="None",num_gpu_blocks="{NUM_BLOCKS}"}}'
        )
        lines = [
            f"process_start_time_seconds {self.started_at}",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{labels} {float(self.running)}",
            f"vllm:num_requests_waiting{labels} {float(self.waiting)}",
            f"vllm:kv_cache_usage_perc{labels} {self.kv_usage}",
            f"vllm:prefix_cache_queries_total{labels} 320.0",
            f"vllm:prefix_cache_queries_created{labels} {self.started_at}",
            f"vllm:prefix_cache_hits_total{labels} 64.0",
            f"vllm:num_preemptions_total{labels} 3.0",
            f"vllm:prompt_tokens_total{labels} 700.0",
            f"vllm:generation_tokens_total{labels} 1.5e+03",
            f"vllm:cache_config_info{config} 1.0",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body, speech = await self.hear(request)
        refused = _refusal(body)
        if refused is not None:
            return _error(400, *refused)
        if speech.status != 200:
            return _error(speech.status, speech.message, None)
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
                "prompt_token_ids": body["prompt"] if body.get("return_token_ids") else None,
            }
            for index in range(body["n"])
        ]
        usage = self._usage(body, speech)
        if usage["prompt_tokens_details"] is not None:
            usage["prompt_tokens_details"] |= {"created_cache_tokens": None, "multimodal_tokens": None}
        return web.json_response(
            {
                "choices": choices,
                "usage": {**usage, "completion_tokens_details": None},
                "kv_transfer_params": self._params(body),
                "metrics": self._times(body),
            }
        )

    def _usage(self, body: dict[str, Any], speech: Speech) -> dict[str, Any]:
        details = {"cached_tokens": speech.cached} if self.tells_cached else None
        return {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": 1,
            "prompt_tokens_details": details,
        }

    def _times(self, body: dict[str, Any]) -> dict[str, Any] | None:
        return TIMES if self.tells_times and body["n"] == 1 else None

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
                last = {"usage": self._usage(body, speech), "metrics": self._times(body)}
                await response.write(
                    _frame({"choices": [], **{name: value for name, value in last.items() if value}})
                )
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _said(
        self, request: web.Request, response: web.StreamResponse, body: dict[str, Any], speech: Speech
    ) -> Any:
        """All but the last token go at once, one a chunk; the last goes with the finish."""
        last: int | None = None
        prompt = body["prompt"] if body.get("return_token_ids") else None
        async for token in self.steps(speech, request):
            if last is not None:
                for index in range(body["n"]):
                    choice = {**_choice(index, [last], body), "prompt_token_ids": prompt}
                    await response.write(_frame({"choices": [choice]}))
                prompt = None
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


def _refusal(body: dict[str, Any]) -> tuple[str, str] | None:
    """Message and parameter."""
    if body["max_tokens"] < 1:
        return f"max_tokens must be at least 1, got {body['max_tokens']}.", "max_tokens"
    salt = body.get("cache_salt")
    if salt is not None and (not salt or len(salt) > 128 or set("@/\\\0") & set(salt)):
        return "Parameter 'cache_salt' must be at most 128 characters and must not contain …", "cache_salt"
    return None


def _error(status: int, message: str, param: str | None) -> web.Response:
    error = {"message": message, "type": "BadRequestError", "param": param, "code": status}
    return web.json_response({"error": error}, status=status)


def _frame(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()
