"""The spans of a request, as OpenTelemetry has them, of a gateway over puppets and over real HTTP."""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from atomesh.errors import ConfigurationError
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.gateway.observability import Observability
from atomesh.observability.open_tracing import open_tracing
from atomesh.protocol.generation import Timings
from atomesh.testing.gateway_server import GatewayServer, gateway_server
from atomesh.testing.puppet_worker import PuppetWorker, serving

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from atomesh.observability.otel import OtelTracing

SECRET = b"s" * 32
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"model": "scripted", "prompt": "hidden", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 1}


class Traced:
    """A mesh of `roles`, with all its spans."""

    def __init__(self, tmp_path: Path, *roles: str) -> None:
        self.puppets = [PuppetWorker(role, SECRET) for role in roles]
        self.addresses = tuple(f"unix:{tmp_path}/{number}.sock" for number in range(len(roles)))
        self._exporter = InMemorySpanExporter()
        tracing = OtelTracing(self._exporter, sends_at_once=True)
        self.options = GatewayOptions(
            workers=self.addresses,
            secret=SECRET,
            admin_token="admin",
            observability=Observability(tracing=tracing),
        )

    def spans(self) -> dict[str, ReadableSpan]:
        """By name, in the order in which they began; there is one of each."""
        found: Sequence[ReadableSpan] = sorted(
            self._exporter.get_finished_spans(), key=lambda s: (s.start_time, s.name)
        )
        assert len({span.name for span in found}) == len(found)
        return {span.name: span for span in found}

    def run(self, scenario: Callable[[GatewayServer], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(30.0), asyncio.TaskGroup() as group:
                stop = asyncio.Event()
                for puppet, address in zip(self.puppets, self.addresses, strict=True):
                    group.create_task(serve_until(stop, puppet, address))
                try:
                    async with gateway_server(self.options) as server:
                        await server.until(200)
                        while not all(puppet.hellos for puppet in self.puppets):  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
                        await scenario(server)
                finally:
                    stop.set()

        asyncio.run(main())


async def serve_until(stop: asyncio.Event, puppet: PuppetWorker, address: str) -> None:
    async with serving(puppet, address):
        await stop.wait()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def test_a_request_over_two_workers_is_one_trace_that_goes_on_from_the_client_s(tmp_path: Path) -> None:
    traced = Traced(tmp_path, "prefill", "decode")
    prefill, decode = traced.puppets

    async def scenario(server: GatewayServer) -> None:
        parent = f"00-{TRACE}-{CALLER}-01"
        asking = asyncio.create_task(
            server.ask("POST", "/v1/completions", BODY, traceparent=parent, x_request_id="mine")
        )
        prefill.say(await prefill.submitted(), 65, timings=Timings(0.25, 0.5), cached_tokens=4)
        leg = await decode.submitted()
        decode.say(leg, 66, timings=Timings(0.0, 0.0, 0.125), kv_source="transferred")
        decode.say(leg, 67, finish="length")
        answer = await asking
        assert answer.status == 200
        version, trace_id, span_id, flags = answer.headers["traceparent"].split("-")
        assert (version, trace_id, flags) == ("00", TRACE, "01")
        assert span_id != CALLER

    traced.run(scenario)
    spans = traced.spans()
    assert list(spans) == [
        "text_completion scripted",
        "placement",
        "prefill leg",
        "decode leg",
        "transfer",
    ]
    request, placement, first, second, transfer = spans.values()
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
    assert f"{request.parent.span_id:016x}" == CALLER
    assert {span.parent.span_id for span in (placement, first, second)} == {request.context.span_id}
    assert transfer.parent.span_id == second.context.span_id
    assert (request.kind, placement.kind, first.kind) == (
        SpanKind.SERVER,
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
    )
    assert transfer.start_time == second.start_time
    assert transfer.end_time - transfer.start_time == 125_000_000
    assert attributes(transfer) == {"atomesh.kv_source": ("transferred",)}
    told = attributes(request)
    answer_id = told.pop("gen_ai.response.id")
    assert str(answer_id).startswith("cmpl-")
    assert told == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "atomesh.request_id": "mine",
        "atomesh.serving_path": "prefill-decode",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "atomesh",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    assert attributes(placement)["atomesh.prefill_worker"] == "prefill-0"
    legs = [attributes(span) for span in (first, second)]
    assert [leg["atomesh.worker"] for leg in legs] == ["prefill-0", "decode-0"]
    assert [leg["atomesh.incarnation"] for leg in legs] == [
        puppet.description.incarnation for puppet in traced.puppets
    ]
    assert all(str(leg["atomesh.attempt_id"]).startswith(str(answer_id)) for leg in legs)
    assert (legs[0]["atomesh.engine.queue_s"], legs[0]["atomesh.engine.prefill_s"]) == (0.25, 0.5)


def test_a_stream_s_span_has_the_time_to_its_first_chunk(tmp_path: Path) -> None:
    traced = Traced(tmp_path, "unified")
    [puppet] = traced.puppets

    async def scenario(server: GatewayServer) -> None:
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hidden"}], "stream": True}
        async with server.http.post("/v1/chat/completions", json=body) as answer:
            puppet.say(await puppet.submitted(), 65, finish="stop")
            await answer.read()
            assert len(answer.headers["traceparent"]) == 55

    traced.run(scenario)
    spans = traced.spans()
    assert list(spans) == ["chat scripted", "placement", "generate"]
    request = spans["chat scripted"]
    told = attributes(request)
    assert request.parent is None
    assert told["gen_ai.request.stream"] is True
    took_s = (request.end_time - request.start_time) / 1e9
    assert 0 < told["gen_ai.response.time_to_first_chunk"] <= took_s
    assert request.status.status_code is StatusCode.UNSET
    for span in spans.values():
        assert "hidden" not in span.to_json()


def test_what_fails_says_of_what_kind(tmp_path: Path) -> None:
    traced = Traced(tmp_path, "unified")
    [puppet] = traced.puppets

    async def scenario(server: GatewayServer) -> None:
        asking = asyncio.create_task(server.ask("POST", "/v1/completions", BODY))
        puppet.fail(await puppet.submitted(), "InvalidRequestError", "quotes the prompt: hidden")
        answer = await asking
        assert answer.status == 400
        assert "traceparent" in answer.headers

    traced.run(scenario)
    spans = traced.spans()
    failed = [spans["generate"], spans["text_completion scripted"]]
    for span in failed:
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "invalid_request_error"
    assert all("hidden" not in span.to_json() for span in spans.values())


def test_a_refused_request_has_its_span_and_a_probe_has_none(tmp_path: Path) -> None:
    traced = Traced(tmp_path, "unified")

    async def scenario(server: GatewayServer) -> None:
        for path in ("/health", "/v1/models", "/load"):
            assert "traceparent" not in (await server.ask("GET", path)).headers
        bad = {**BODY, "temperature": 9}
        broken = await server.ask("POST", "/v1/completions", bad, traceparent="00-xyz")
        assert broken.status == 400
        assert len(broken.headers["traceparent"]) == 55

    traced.run(scenario)
    [(name, span)] = traced.spans().items()
    assert name == "text_completion"
    assert span.parent is None
    assert attributes(span) == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 400,
        "atomesh.request_id": attributes(span)["atomesh.request_id"],
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "atomesh",
        "error.type": "invalid_request_error",
    }


def test_without_an_endpoint_no_header_is_sent(tmp_path: Path) -> None:
    traced = Traced(tmp_path, "unified")
    traced.options = GatewayOptions(workers=traced.addresses, secret=SECRET, admin_token="admin")
    [puppet] = traced.puppets

    async def scenario(server: GatewayServer) -> None:
        asking = asyncio.create_task(
            server.ask("POST", "/v1/completions", BODY, traceparent=f"00-{TRACE}-{CALLER}-01")
        )
        puppet.say(await puppet.submitted(), 65, finish="stop")
        assert "traceparent" not in (await asking).headers

    traced.run(scenario)
    assert traced.spans() == {}


def test_spans_reach_a_collector_by_otlp_over_http() -> None:
    received: list[tuple[str, str | None, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, self.headers["content-type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quietly."""

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        tracing = open_tracing(f"http://127.0.0.1:{server.server_port}")
        with tracing.request("chat", {}) as span:
            span.note({"gen_ai.provider.name": "atomesh"})
        tracing.close()
        server.shutdown()
        thread.join()
    [(path, content_type, body)] = received
    assert (path, content_type) == ("/v1/traces", "application/x-protobuf")
    assert b"gen_ai.provider.name" in body


def test_a_missing_extra_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "atomesh.observability.otel")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"install atomesh\[otel\], or leave the flag out"):
        open_tracing("http://127.0.0.1:4318")


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:4318", "ftp://host", "http://"])
def test_what_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="write the URL of a collector"):
        open_tracing(endpoint)
