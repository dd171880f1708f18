"""GET /metrics of a running server after a known set of requests, and after whatever clients send."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from atomesh.clock import Clock
from atomesh.errors import EngineError, ServiceUnavailableError
from atomesh.frontend.app import create_app
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.served_model import ServedModel
from atomesh.protocol.worker import LoadReport, ModelDescription
from atomesh.testing.app_server import AppServer, serve_app
from atomesh.testing.byte_tokenizer import END, ByteTokenizer
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.plain_chat_template import PlainChatTemplate
from atomesh.testing.raw_http import connect, request_bytes, send
from atomesh.testing.scripted_service import Script, ScriptedService

MODEL = "scripted/letters"
DESCRIPTION = ModelDescription(
    name=MODEL, path="", architecture="scripted", dtype="float32", vocab_size=ByteTokenizer.vocab_size,
    max_model_len=512, eos_token_ids=(END,), block_size=16, num_blocks=64,
)  # fmt: skip
LABELS = {"model_name": MODEL, "engine": "0"}
CONTRACT = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "request_success_total",
    "time_to_first_token_seconds_sum",
    "inter_token_latency_seconds_sum",
    "request_time_per_output_token_seconds_sum",
    "e2e_request_latency_seconds_sum",
    "request_queue_time_seconds_sum",
    "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum",
    "request_inference_time_seconds_sum",
    "request_prompt_tokens_sum",
    "request_generation_tokens_sum",
    "cache_config_info",
    "lora_requests_info",
)
PARTS = ("queue", "prefill", "transfer", "first_decode")
MAX_SERIES = 2000


@dataclass
class Server:
    app: AppServer
    service: ScriptedService

    def ask(self, status: int, path: str = "/v1/completions", **fields: object) -> None:
        body = {"model": MODEL, "prompt": "abcd", "max_tokens": 3, "add_special_tokens": False, **fields}
        assert send(self.app.url, "POST", path, body).status == status

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        text = send(self.app.url, "GET", "/metrics").body.decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():  # noqa: ASYNC110  what it waits for tells nobody
                await asyncio.sleep(0.002)

        self.app.run(wait())


class Scrape:
    def __init__(self, server: Server) -> None:
        self._samples = server.samples()

    def of(self, name: str, **labels: str) -> float | None:
        return self._samples.get((name, tuple(sorted(labels.items()))))

    def vllm(self, name: str, **labels: str) -> float | None:
        return self.of(f"vllm:{name}", **LABELS, **labels)

    def finishes(self) -> dict[str, float]:
        counts = {
            reason: self.vllm("request_success_total", finished_reason=reason)
            for reason in ("stop", "length", "abort", "error")
        }
        return {reason: count for reason, count in counts.items() if count}


@contextmanager
def serving(clock: Clock | None = None) -> Iterator[Server]:
    service = ScriptedService(DESCRIPTION)
    model = ServedModel(MODEL, ByteTokenizer(), PlainChatTemplate(), service, 1_700_000_000, ("letters",))
    with serve_app(create_app(lambda: [model], FrontendOptions(hold_s=0.2), clock=clock)) as app:
        yield Server(app, service)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as served:
        yield served


@pytest.fixture(params=[False, True], ids=["in-turn", "ahead"])
def each_server(request: pytest.FixtureRequest, server: Server) -> Server:
    """One whose tokens come one by one, and one that brings them as a mesh does."""
    server.service.goes_ahead = request.param
    return server


def test_every_metric_of_the_contract_is_there_with_its_labels(server: Server) -> None:
    server.ask(200)
    names = {name for name, labels in server.samples() if set(LABELS.items()) <= set(labels)}
    assert {f"vllm:{name}" for name in CONTRACT} - names == set()


def test_every_metric_of_the_contract_has_its_exact_value_after_one_answer() -> None:
    clock = ManualClock()

    def begin(_: object) -> Script:
        clock.advance(2.0)  # until the engine has the request
        return Script()

    with serving(clock) as server:
        server.service.script = begin
        server.service.load_report = LoadReport(
            running=1, waiting=2, total_blocks=64, free_blocks=48, prefix_cache_queries=4,
            prefix_cache_hits=3, preemptions=5,
        )  # fmt: skip
        server.ask(200)  # 4 tokens in, 3 out; 0.25 s in the engine's queue and 0.5 s in its prefill
        scrape = Scrape(server)
        info = {"block_size": "16", "num_gpu_blocks": "64", "cache_dtype": "float32"}
        lora = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
        labels = {
            "cache_config_info": info,
            "lora_requests_info": lora,
            "request_success_total": {"finished_reason": "length"},
        }
        found = {name: scrape.vllm(name, **labels.get(name, {})) for name in CONTRACT}

    assert found == {
        "num_requests_running": 1,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.25,
        "prefix_cache_queries_total": 4,
        "prefix_cache_hits_total": 3,
        "prompt_tokens_total": 4,
        "generation_tokens_total": 3,
        "num_preemptions_total": 5,
        "request_success_total": 1,
        "time_to_first_token_seconds_sum": 2.0,
        "inter_token_latency_seconds_sum": 0.0,
        "request_time_per_output_token_seconds_sum": 0.0,
        "e2e_request_latency_seconds_sum": 2.0,
        "request_queue_time_seconds_sum": 0.25,
        "request_prefill_time_seconds_sum": 0.5,
        "request_decode_time_seconds_sum": 0.0,
        "request_inference_time_seconds_sum": 0.5,
        "request_prompt_tokens_sum": 4,
        "request_generation_tokens_sum": 3,
        "cache_config_info": 1,
        "lora_requests_info": 1,
    }
    parts = [scrape.of("atomesh_time_to_first_token_part_seconds_sum", **LABELS, part=part) for part in PARTS]
    assert parts == [0.25, 0.5, 0.0, 1.25]


def test_whole_and_streamed_answers_are_counted_exactly(each_server: Server) -> None:
    each_server.ask(200)  # 4 tokens in, 3 out, length
    each_server.ask(200, stream=True, max_tokens=5)  # 5 out
    each_server.ask(200, prompt=["ab", "abc"], n=2, temperature=1.0, max_tokens=2)  # 5 in; 2 × 2 × 2 out
    each_server.service.script = lambda _: Script(tokens=[[65, END]])
    each_server.ask(200, stream=True)  # 2 out, stop
    scrape = Scrape(each_server)

    assert scrape.vllm("prompt_tokens_total") == 4 + 4 + 5 + 4
    assert scrape.vllm("generation_tokens_total") == 3 + 5 + 8 + 2
    assert scrape.finishes() == {"length": 1 + 1 + 4, "stop": 1}
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert scrape.vllm(f"{name}_count") == 5  # one a prompt
    assert scrape.vllm("request_prompt_tokens_sum") == 17
    assert scrape.vllm("request_generation_tokens_sum") == 18
    assert scrape.vllm("inter_token_latency_seconds_count") == 2 + 4 + 1 + 1 + 1
    assert scrape.vllm("request_queue_time_seconds_sum") == 5 * 0.25  # the double's own words
    assert scrape.vllm("request_prefill_time_seconds_sum") == 5 * 0.5
    assert scrape.of("atomesh_requests_served_total", **LABELS, path="unified") == 5
    assert scrape.of("atomesh_http_requests_total", endpoint="/v1/completions", status="200") == 4
    parts = [scrape.of("atomesh_time_to_first_token_part_seconds_sum", **LABELS, part=part) for part in PARTS]
    assert sum(parts) == pytest.approx(scrape.vllm("time_to_first_token_seconds_sum"), abs=1e-12)
    assert scrape.of("atomesh_requests_in_flight", model_name=MODEL) == 0


def test_refused_failed_and_aborted_requests_are_told_apart(each_server: Server) -> None:
    each_server.ask(400, temperature=9)
    each_server.ask(404, model="no/such")
    each_server.ask(404, path="/v1/no-such-route")
    each_server.service.unavailable = ServiceUnavailableError("not ready")
    each_server.ask(503)
    each_server.service.unavailable = None
    assert Scrape(each_server).finishes() == {}  # nothing had begun

    each_server.service.script = lambda _: Script(error=EngineError("broken"))
    each_server.ask(500)
    each_server.service.script = lambda _: Script(error=EngineError("broken"), fail_after=2)
    each_server.ask(200, stream=True, max_tokens=9)  # and then an error frame
    assert Scrape(each_server).finishes() == {"error": 2}

    each_server.service.script = lambda _: Script(hang_after=1)
    body = json.dumps({"model": MODEL, "prompt": "abcd", "max_tokens": 9, "stream": True}).encode()
    with connect(each_server.app.url) as client:
        client.sendall(request_bytes("POST", "/v1/completions", body))
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert Scrape(each_server).of("atomesh_requests_in_flight", model_name=MODEL) == 1
    each_server.until(lambda: not each_server.service.running)
    scrape = Scrape(each_server)

    assert scrape.finishes() == {"error": 2, "abort": 1}
    statuses = {
        (endpoint, status): scrape.of("atomesh_http_requests_total", endpoint=endpoint, status=status)
        for endpoint, status in (
            ("/v1/completions", "400"),
            ("/v1/completions", "404"),
            ("/v1/completions", "503"),
            ("/v1/completions", "500"),
            ("/v1/completions", "200"),
            ("other", "404"),
        )
    }
    assert list(statuses.values()) == [1, 1, 1, 1, 2, 1]
    assert scrape.of("atomesh_cut_streams_total") == 1
    assert scrape.of("atomesh_client_disconnects_total") == 1
    assert scrape.vllm("e2e_request_latency_seconds_count") == 0  # of answers that are whole
    assert scrape.of("atomesh_requests_in_flight", model_name=MODEL) == 0


def test_the_engine_s_own_figures_are_those_of_its_last_report(server: Server) -> None:
    server.service.load_report = LoadReport(
        running=3, waiting=7, total_blocks=64, free_blocks=40, cached_blocks=8, prefix_cache_queries=100,
        prefix_cache_hits=64, preemptions=2,
    )  # fmt: skip
    scrape = Scrape(server)
    told = {
        "num_requests_running": 3.0,
        "num_requests_waiting": 7.0,
        "kv_cache_usage_perc": 0.25,
        "prefix_cache_queries_total": 100.0,
        "prefix_cache_hits_total": 64.0,
        "num_preemptions_total": 2.0,
    }
    assert {name: scrape.vllm(name) for name in told} == told
    assert send(server.app.url, "GET", "/load").json() == {"server_load": 10, "running": 3, "waiting": 7}


NAMES = st.text(
    st.characters(codec="ascii", categories=("L", "N", "P"), exclude_characters="#?%"),
    min_size=1,
    max_size=20,
)


def test_series_are_bounded_whatever_clients_send(server: Server) -> None:
    @settings(max_examples=40)
    @given(model=NAMES, path=NAMES, key=NAMES, field=NAMES)
    def hostile(model: str, path: str, key: str, field: str) -> None:
        headers = {"authorization": f"Bearer {key}", "x-api-key": key, "x-request-id": key}
        body = {"model": model, "prompt": "a", "max_tokens": 1, "user": key, f"x_{field}": 1}
        send(server.app.url, "POST", "/v1/completions", body, headers)
        send(server.app.url, "POST", "/v1/completions", {**body, "model": "letters"}, headers)
        send(server.app.url, "POST", f"/{path}", body, headers)
        send(server.app.url, "GET", f"/v1/models/{path}", None, headers)

    server.ask(200)
    hostile()
    samples = server.samples()
    assert len(samples) < 600
    assert len(samples) < MAX_SERIES
    values = {value for _, labels in samples for name, value in labels if name in ("model_name", "endpoint")}
    assert values <= {MODEL, "/v1/completions", "/v1/models/{id}", "/metrics", "other"}
