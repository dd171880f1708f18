"""An engine that is not ours, as the operator names it: `URL,kind=vllm,role=decode,model=…,key-env=NAME`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from atomesh.errors import ConfigurationError
from atomesh.mesh.backends.event_source import OPTIONS as EVENT_OPTIONS
from atomesh.mesh.backends.event_source import EventSource, parse_event_source
from atomesh.mesh.backends.kinds import KINDS
from atomesh.protocol.worker import PRESETS, Role

OPTIONS = ("kind", "role", "model", "key-env", "bootstrap-port", "slots")
ROLES: Mapping[str, Role] = {name: name for name in PRESETS if name != "parked"}
DEFAULT_BOOTSTRAP_PORT = 8998  # SGLang's own
MAX_SLOTS = 4096  # connections to one server
DEFAULT_SLOTS = 1024


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """`url` is the server's, without `/v1`. `model` says where the files of its model lie on this machine.
    `events` is where it publishes what it caches; without, that is guessed from what was sent to it.

    `api_key` is sent to the server, and to nobody else. `bootstrap_port` is where an SGLang prefill server
    waits for its decode server. `slots` is how many requests a server of text is given at once.
    """

    url: str
    kind: str
    role: Role = "unified"
    model: str = ""
    api_key: str | None = field(default=None, repr=False)
    bootstrap_port: int = DEFAULT_BOOTSTRAP_PORT
    slots: int = DEFAULT_SLOTS
    events: EventSource | None = None

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


def parse_backend(text: str, read_variable: Callable[[str], str | None]) -> BackendSpec:
    """`read_variable` is the environment's value of a name. Raises ConfigurationError."""
    url, *words = text.split(",")
    options = dict(_option(text, word) for word in words)
    kind = options.get("kind", "")
    if kind not in KINDS:
        raise ConfigurationError(
            f"--backend {text!r}: kind is {kind!r}; write kind={'|'.join(KINDS)}: "
            "vllm and sglang take token ids, openai is any server of that API"
        )
    role = options.get("role", "unified")
    if role not in ROLES:
        raise ConfigurationError(f"--backend {text!r}: role is {role!r}; write role={'|'.join(ROLES)}")
    if kind == "openai" and role != "unified":
        raise ConfigurationError(f"--backend {text!r}: a server of kind openai can only be role=unified")
    if kind != "openai" and "slots" in options:
        raise ConfigurationError(
            f"--backend {text!r}: slots is for kind=openai; other engines say themselves how much they can do"
        )
    return BackendSpec(
        url=_base_url(text, url),
        kind=kind,
        role=ROLES[role],
        model=options.get("model", ""),
        api_key=_key(text, options.get("key-env"), read_variable),
        events=parse_event_source(text, kind, options),
        bootstrap_port=_number(text, options, "bootstrap-port", DEFAULT_BOOTSTRAP_PORT, 65535),
        slots=_number(text, options, "slots", DEFAULT_SLOTS, MAX_SLOTS),
    )


def _option(text: str, word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    known = (*OPTIONS, *EVENT_OPTIONS)
    if name not in known or not equals:
        raise ConfigurationError(f"--backend {text!r}: {word!r} is none of {'=…, '.join(known)}=…")
    return name, value


def _base_url(text: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise ConfigurationError(
            f"--backend {text!r}: {url!r} is no URL of a server; write http://HOST:PORT or https://HOST"
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(
            f"--backend: the URL of {parts.hostname} holds a password, which would be shown; put it into an "
            "environment variable and name that with key-env="
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _key(text: str, name: str | None, read_variable: Callable[[str], str | None]) -> str | None:
    if name is None:
        return None
    key = read_variable(name)
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigurationError(
            f"--backend {text!r}: the environment variable {name!r} holds no key; export it first"
        )
    return key


def _number(text: str, options: Mapping[str, str], name: str, default: int, most: int) -> int:
    value = options.get(name)
    if value is None:
        return default
    if not value.isdecimal() or not 1 <= int(value) <= most:
        raise ConfigurationError(f"--backend {text!r}: {name} is {value!r}; it must lie between 1 and {most}")
    return int(value)
