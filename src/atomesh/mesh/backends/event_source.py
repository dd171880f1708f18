"""Where an engine that is not ours publishes its KV events: `events=`, `replay=`, `salts=` of --backend."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from atomesh.errors import ConfigurationError

OPTIONS = ("events", "replay", "salts")
WILDCARDS = ("*", "0.0.0.0", "[::]")  # noqa: S104  what is refused
PUBLISHERS = ("vllm", "sglang")


@dataclass(frozen=True, slots=True)
class EventSource:
    """ZeroMQ endpoints; without `replay` what is missed is lost.

    `is_unsalted`: the operator's word that nothing this engine serves has a salt, so that events which do not
    say are believed.
    """

    endpoint: str
    replay: str | None = None
    topic: str = ""
    is_unsalted: bool = False


def parse_event_source(text: str, kind: str, options: Mapping[str, str]) -> EventSource | None:
    """`text` is the whole of --backend, `options` what it says by name. Raises ConfigurationError."""
    endpoint = options.get("events")
    if endpoint is None:
        _refuse_without_events(text, options)
        return None
    if kind not in PUBLISHERS:
        raise ConfigurationError(
            f"--backend {text!r}: a server of kind {kind} publishes no KV events; leave events= out, or "
            f"write kind={'|'.join(PUBLISHERS)}"
        )
    replay = options.get("replay")
    salts = options.get("salts")
    if salts not in (None, "none"):
        raise ConfigurationError(
            f"--backend {text!r}: salts is {salts!r}; write salts=none if no prompt there has one, or leave "
            "it out"
        )
    return EventSource(
        _endpoint(text, "events", endpoint),
        None if replay is None else _endpoint(text, "replay", replay),
        is_unsalted=salts is not None,
    )


def _refuse_without_events(text: str, options: Mapping[str, str]) -> None:
    for name in OPTIONS:
        if name in options:
            raise ConfigurationError(f"--backend {text!r}: {name}= needs events=tcp://HOST:PORT beside it")


def _endpoint(text: str, name: str, value: str) -> str:
    try:
        parts = urlsplit(value)
        is_good = parts.scheme == "ipc" and bool(parts.path)
        if parts.scheme == "tcp":
            is_good = bool(parts.hostname) and bool(parts.port) and not parts.path
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise ConfigurationError(
            f"--backend {text!r}: {name} is {value!r}; write tcp://HOST:PORT, where the engine publishes"
        )
    host = parts.netloc.rpartition(":")[0]
    if host in WILDCARDS:
        raise ConfigurationError(
            f"--backend {text!r}: {name} is {value!r}, which says where the engine listens; write the host "
            "that this gateway reaches it at"
        )
    return value
