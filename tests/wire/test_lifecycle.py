"""What a server does beside answering well: start-up, clients that leave, bodies that never end, metrics."""

import json
import time
from typing import Any

import pytest

from atomesh.errors import ServiceUnavailableError
from atomesh.protocol.worker import LoadReport
from atomesh.testing.raw_http import connect, read_response, request_bytes, send
from atomesh.testing.scripted_service import Script
from atomesh.testing.wire import ScriptedWire

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping", "/v1/models", "/v1/models/x"])
def test_before_a_model_is_there(scripted: ScriptedWire, path: str) -> None:
    scripted.models.clear()
    response = send(scripted.url, "GET", path)
    assert response.status == 503
    assert response.error["type"] == "service_unavailable_error"
    assert 1 <= int(response.headers["retry-after"]) <= 120
    assert send(scripted.url, "POST", CHAT, {"messages": HELLO, "model": "anything"}).status == 503
    assert send(scripted.url, "GET", "/live").status == 200
    assert send(scripted.url, "GET", "/metrics").status == 200


def test_while_the_engine_is_gone(scripted: ScriptedWire) -> None:
    scripted.service.unavailable = ServiceUnavailableError("the worker restarts", retry_after_s=3)
    for method, path in (
        ("GET", "/health"),
        ("GET", "/v1/models"),
        ("POST", CHAT),
        ("POST", "/v1/completions"),
    ):
        response = send(
            scripted.url, method, path, {"messages": HELLO, "prompt": "a"} if method == "POST" else None
        )
        assert response.status == 503
        assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize("fields", [{"stream": True}, {}, {"n": 3, "temperature": 1}], ids=repr)
@pytest.mark.parametrize("steps", [0, 3])
def test_a_client_that_leaves_aborts_its_request(
    scripted: ScriptedWire, fields: dict[str, Any], steps: int
) -> None:
    scripted.service.script = lambda _request: Script(hang_after=steps)
    body = json.dumps({"messages": HELLO, "max_tokens": 20, **fields}).encode()
    with connect(scripted.url) as connection:
        connection.sendall(request_bytes("POST", CHAT, body))
        scripted.server.run(scripted.service.until_running(1))
    scripted.server.run(scripted.service.until_running(0))
    assert [request.request_id for request in scripted.service.requests] == scripted.service.aborted


def test_a_client_that_leaves_aborts_all_its_prompts(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(hang_after=1)
    body = json.dumps({"prompt": ["a", "b", "c"], "max_tokens": 20, "stream": True}).encode()
    with connect(scripted.url) as connection:
        connection.sendall(request_bytes("POST", "/v1/completions", body))
        scripted.server.run(scripted.service.until_running(3))
    scripted.server.run(scripted.service.until_running(0))
    assert len(scripted.service.aborted) == 3


def test_one_failing_prompt_ends_the_others(scripted: ScriptedWire) -> None:
    def script(request: Any) -> Script:
        is_bad = request.prompt_token_ids[-1] == ord("b")
        return Script(error=ServiceUnavailableError("gone")) if is_bad else Script(hang_after=1)

    scripted.service.script = script
    response = send(scripted.url, "POST", "/v1/completions", {"prompt": ["a", "b", "c"]})
    assert response.status == 503
    assert len(scripted.service.aborted) == 2


def test_endless_chunks_are_cut_at_the_limit(scripted: ScriptedWire) -> None:
    with connect(scripted.url) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
        for _ in range(20):
            connection.sendall(piece)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_never_comes_times_out(scripted: ScriptedWire) -> None:
    with connect(scripted.url) as connection:
        connection.sendall(HEAD + b"content-length: 10\r\nconnection: close\r\n\r\n{")
        response = read_response(connection)
    assert response.status == 408
    assert response.error["type"] == "request_timeout"


def test_a_long_prompt_does_not_stall_the_server(scripted: ScriptedWire) -> None:
    text = "a" * 200_000
    started = time.monotonic()
    response = send(scripted.url, "POST", CHAT, {"messages": [{"role": "user", "content": text}]})
    assert response.status == 400
    assert response.error["code"] == "context_length_exceeded"
    assert time.monotonic() - started < 1.0


def metric(wire: ScriptedWire, name: str) -> float:
    lines = send(wire.url, "GET", "/metrics").body.decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{")))


def test_metrics_count_what_happened(scripted: ScriptedWire) -> None:
    names = (
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="scripted/letters"}',
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:request_time_per_output_token_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_queue_time_seconds_sum",
        "vllm:request_prefill_time_seconds_sum",
        "vllm:request_decode_time_seconds_count",
        "vllm:request_inference_time_seconds_count",
        "vllm:request_prompt_tokens_sum",
        "vllm:request_generation_tokens_sum",
        "atomesh_unknown_request_fields_total",
    )
    before = [metric(scripted, name) for name in names]
    scripted.say("Hi!")
    send(scripted.url, "POST", "/v1/completions", {"prompt": "hello", "unheard_of": 1, "also": None})
    after = [metric(scripted, name) for name in names]
    grown = [b - a for a, b in zip(before, after, strict=True)]
    assert grown == [6, 4, 1, 1, 3, 1, 1, 0.25, 0.5, 1, 1, 6, 4, 2]


def test_metrics_tell_the_engine_s_load(scripted: ScriptedWire) -> None:
    scripted.service.load_report = LoadReport(
        running=3, waiting=2, free_blocks=10, cached_blocks=6, held_blocks=40, reserved_blocks=5,
        quarantined_blocks=2, total_blocks=64, unaccounted_blocks=1, kv_imbalances=7,
        prefix_cache_queries=100, prefix_cache_hits=40, preemptions=1, steps=9,
    )  # fmt: skip
    expected = {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 2,
        "vllm:kv_cache_usage_perc": 0.75,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 40,
        "vllm:num_preemptions_total": 1,
        "vllm:cache_config_info": 1,
        "vllm:lora_requests_info": 1,
        "atomesh_engine_steps_total": 9,
        "atomesh_kv_blocks": 63,
        "atomesh_kv_pool_blocks": 64,
        "atomesh_kv_unaccounted_blocks": 1,
        "atomesh_kv_imbalances_total": 7,
    }
    assert {name: metric(scripted, name) for name in expected} == expected
    states = {"free": 10, "cached": 6, "held": 40, "reserved": 5, "quarantined": 2}
    for state, count in states.items():
        labels = f'model_name="scripted/letters",state="{state}",worker="scripted"'
        assert metric(scripted, f"atomesh_kv_blocks{{{labels}}}") == count
    assert send(scripted.url, "GET", "/load").json() == {"server_load": 5, "running": 3, "waiting": 2}
    scripted.service.load_report = LoadReport()


def test_clients_cannot_make_series(scripted: ScriptedWire) -> None:
    send(scripted.url, "GET", "/nowhere/0")
    before = len(send(scripted.url, "GET", "/metrics").body.splitlines())
    for index in range(20):
        send(scripted.url, "GET", f"/nowhere/{index}")
        send(scripted.url, "GET", f"/v1/models/m{index}")
        send(scripted.url, "POST", CHAT, {"messages": HELLO, "model": f"m{index}", f"field{index}": 1})
    after = len(send(scripted.url, "GET", "/metrics").body.splitlines())
    assert after - before <= 6
    assert after < 2000


def test_disconnects_are_counted_as_aborts(scripted: ScriptedWire) -> None:
    name = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="scripted/letters"}'
    before = metric(scripted, name)
    scripted.service.script = lambda _request: Script(hang_after=1)
    body = json.dumps({"messages": HELLO, "stream": True}).encode()
    with connect(scripted.url) as connection:
        connection.sendall(request_bytes("POST", CHAT, body))
        scripted.server.run(scripted.service.until_running(1))
    scripted.server.run(scripted.service.until_running(0))
    assert metric(scripted, name) - before == 1
    assert metric(scripted, "atomesh_requests_in_flight") == 0
