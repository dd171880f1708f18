"""Traces of requests: the narrow door to OpenTelemetry, which is imported only when traces are wanted.

Whoever traces wraps what is traced; nothing that decides or serves knows of spans.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Protocol, cast
from urllib.parse import urlsplit

from atomesh.errors import ConfigurationError

Attribute = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Attribute]
TRACES_PATH = "/v1/traces"


class Span(Protocol):
    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        ...

    @property
    def traceparent(self) -> str:
        """As W3C Trace Context writes it, for whoever continues the trace."""
        ...

    @property
    def start_ns(self) -> int: ...

    def rename(self, name: str) -> None: ...

    def note(self, attributes: Attributes) -> None: ...

    def fail(self, error_type: str) -> None:
        """It ends in an error of that kind; its words are not kept, which may quote a request."""
        ...

    def end(self) -> None: ...

    def record_child(self, name: str, start_ns: int, duration_s: float, attributes: Attributes) -> None:
        """What is only known once it is over."""
        ...


class Tracing(Protocol):
    def request(self, name: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """A server's span, around what runs inside; it goes on with the trace that `headers` name, if any."""
        ...

    def child(self, name: str, attributes: Attributes, *, is_call: bool = False) -> Span:
        """Of the span around what runs now; to be ended. `is_call`: another process does the work."""
        ...

    def close(self) -> None:
        """Send what has not been sent."""
        ...


def open_tracing(endpoint: str) -> Tracing:
    """Sends spans by OTLP over HTTP to `endpoint`, a collector's base URL or the URL for its traces.

    Raises ConfigurationError when it is no URL, or the libraries are not installed.
    """
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigurationError(
            f"--otlp-endpoint is {endpoint!r}; write the URL of a collector, such as http://127.0.0.1:4318"
        )
    if url.path in ("", "/"):
        url = url._replace(path=TRACES_PATH)
    try:
        otel = import_module("atomesh.observability.otel")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ConfigurationError(
            "--otlp-endpoint needs OpenTelemetry, which is not installed; install atomesh[otel], "
            "or leave the flag out"
        ) from None
    return cast("Tracing", otel.OtelTracing(otel.otlp_exporter(url.geturl())))
