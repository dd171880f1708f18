"""OpenTelemetry, which is imported only when traces are wanted."""

from importlib import import_module
from typing import cast
from urllib.parse import urlsplit

from atomesh.errors import ConfigurationError
from atomesh.observability.tracing import Tracing

TRACES_PATH = "/v1/traces"


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
