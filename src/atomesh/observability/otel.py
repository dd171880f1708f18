"""Spans by OpenTelemetry: the one file that imports it."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from atomesh.observability.tracing import Attributes

SERVICE = "atomesh"
_NS = 1_000_000_000
_SEND_S = 5.0  # to a collector, before its spans are dropped
CLOSE_S = 3.0


def otlp_exporter(url: str) -> SpanExporter:
    return OTLPSpanExporter(endpoint=url, timeout=_SEND_S)


class OtelSpan:
    """Implements `tracing.Span`."""

    def __init__(self, tracer: trace.Tracer, inner: trace.Span, start_ns: int) -> None:
        self.start_ns = start_ns
        self._tracer = tracer
        self._inner = inner

    @property
    def trace_id(self) -> str:
        return trace.format_trace_id(self._inner.get_span_context().trace_id)

    @property
    def traceparent(self) -> str:
        context = self._inner.get_span_context()
        return f"00-{self.trace_id}-{trace.format_span_id(context.span_id)}-{context.trace_flags:02x}"

    def rename(self, name: str) -> None:
        self._inner.update_name(name)

    def note(self, attributes: Attributes) -> None:
        self._inner.set_attributes(dict(attributes))

    def fail(self, error_type: str) -> None:
        self._inner.set_attribute("error.type", error_type)
        self._inner.set_status(StatusCode.ERROR)

    def end(self) -> None:
        self._inner.end()

    def record_child(self, name: str, start_ns: int, duration_s: float, attributes: Attributes) -> None:
        child = self._tracer.start_span(
            name,
            context=trace.set_span_in_context(self._inner),
            attributes=dict(attributes),
            start_time=start_ns,
        )
        child.end(start_ns + round(duration_s * _NS))


class OtelTracing:
    """Implements `tracing.Tracing`. What waits to be sent is bounded, and dropped beyond that."""

    def __init__(self, exporter: SpanExporter, *, sends_at_once: bool = False) -> None:
        ours = version(SERVICE)
        resource = Resource({SERVICE_NAME: SERVICE, SERVICE_VERSION: ours})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        make = SimpleSpanProcessor if sends_at_once else BatchSpanProcessor
        self._provider.add_span_processor(make(exporter))
        self._tracer = self._provider.get_tracer(SERVICE, ours)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, name: str, headers: Mapping[str, str]) -> Iterator[OtelSpan]:
        inner = self._tracer.start_span(
            name, context=self._propagator.extract(dict(headers)), kind=SpanKind.SERVER
        )
        with trace.use_span(inner, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield OtelSpan(self._tracer, inner, _start_of(inner))

    def child(self, name: str, attributes: Attributes, *, is_call: bool = False) -> OtelSpan:
        kind = SpanKind.CLIENT if is_call else SpanKind.INTERNAL
        inner = self._tracer.start_span(name, kind=kind, attributes=dict(attributes))
        return OtelSpan(self._tracer, inner, _start_of(inner))

    def close(self) -> None:
        """Waits CLOSE_S at most: a collector that does not answer is not worth more."""
        sending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        sending.start()
        sending.join(CLOSE_S)


def _start_of(span: trace.Span) -> int:
    """A span that is not sampled has none."""
    start: int = getattr(span, "start_time", None) or 0
    return start
