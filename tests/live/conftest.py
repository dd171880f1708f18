"""A live vLLM and our gateway before it, where there are any: `make vllm` starts both and names them.

ATOMESH_WIRE_URL is the gateway, ATOMESH_VLLM_URL the vLLM behind it, or the prefill one of a pair;
ATOMESH_VLLM_DECODE_URL then the decode one. Without them there is nothing to test.
"""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from atomesh.mesh.backends.prometheus_text import Readings, read_metrics
from atomesh.testing.raw_http import RawResponse, request_bytes

PATIENCE_S = 120.0  # of a model on a few cores, beside others
GATEWAY, VLLM, DECODE = (
    os.environ.get(name, "").rstrip("/")
    for name in ("ATOMESH_WIRE_URL", "ATOMESH_VLLM_URL", "ATOMESH_VLLM_DECODE_URL")
)


@dataclass(frozen=True)
class Live:
    """`decode` is where answers are computed: the vLLM itself where there is but one."""

    gateway: str
    vllm: str
    decode: str
    model: str
    started: int  # another number each time, for prompts that no cache has seen

    @property
    def is_pair(self) -> bool:
        return self.decode != self.vllm

    def ask(self, prompt: list[int], **fields: Any) -> Any:
        """The gateway's answer."""
        return checked(self.send(prompt, **fields))

    def ask_vllm(self, prompt: list[int], **fields: Any) -> Any:
        """vLLM's own answer to the same."""
        fields = {**fields, "return_token_ids": True}
        return checked(send(self.vllm, "/v1/completions", self._body(prompt, fields)))

    def send(self, prompt: list[int], **fields: Any) -> RawResponse:
        return send(self.gateway, "/v1/completions", self._body(prompt, fields))

    def refusal_of_vllm(self, **fields: Any) -> dict[str, Any]:
        response = send(self.vllm, "/v1/completions", self._body([1, 2, 3], fields))
        assert response.status == 400
        return response.error

    def readings(self, url: str = "") -> Readings:
        return read_metrics(send(url or self.decode, "/metrics").body.decode(), "vllm:")

    def get(self, url: str, path: str) -> RawResponse:
        return send(url, path)

    def list_models(self, url: str) -> list[dict[str, Any]]:
        models: list[dict[str, Any]] = checked(send(url, "/v1/models"))["data"]
        return models

    def detokenize(self, tokens: list[int]) -> str:
        text: str = checked(send(self.gateway, "/detokenize", {"tokens": tokens}))["prompt"]
        return text

    def load(self) -> Any:
        return checked(send(self.gateway, "/load"))

    def stream(self, prompt: list[int], **fields: Any) -> list[dict[str, Any]]:
        """Every chunk before the [DONE]."""
        options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        response = self.send(prompt, **options, **fields)
        assert response.status == 200
        *frames, done, _ = response.body.decode().split("\n\n")
        assert done == "data: [DONE]"
        return [json.loads(frame.removeprefix("data: ")) for frame in frames]

    def stream_request(self, prompt: list[int], **fields: Any) -> bytes:
        """For a client that will not stay."""
        body = self._body(prompt, {"stream": True, "ignore_eos": True, **fields})
        return request_bytes("POST", "/v1/completions", json.dumps(body).encode())

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it did not come to that"
            time.sleep(0.1)  # what runs in another program tells nobody

    def _body(self, prompt: list[int], fields: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}


def send(url: str, path: str, body: Any = None) -> RawResponse:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310  URLs of our own
            return RawResponse(answer.status, _lower(answer.headers), answer.read(), is_complete=True)
    except urllib.error.HTTPError as error:
        return RawResponse(error.code, _lower(error.headers), error.read(), is_complete=True)


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def checked(response: RawResponse) -> Any:
    assert response.status == 200, response.body
    return response.json()


@pytest.fixture(scope="session")
def live() -> Live:
    if not GATEWAY or not VLLM:
        pytest.skip("no live vLLM; make vllm starts one")
    model = checked(send(GATEWAY, "/v1/models"))["data"][0]["id"]
    return Live(GATEWAY, VLLM, DECODE or VLLM, model, time.time_ns())
