"""The flags that several commands share, and how a command hands them on to another process."""

from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter, Token

from atomesh.byte_size import format_size
from atomesh.cli.sizes import parse_size
from atomesh.engine.options import (
    AttentionChoice,
    DeviceKind,
    DtypeChoice,
    EngineOptions,
    SchedulingPolicy,
    WeightsChoice,
)
from atomesh.engine.worker_spec import DEFAULT_KV_LEASE_S
from atomesh.errors import ConfigurationError
from atomesh.frontend.reasoning.dialects import parse_choice
from atomesh.frontend.tool_calls.registry import check_dialect
from atomesh.mesh.placement.policies.rules import parse_policies
from atomesh.observability.log_format import LogFormat

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_OPTIONS = EngineOptions()

MAX_DRAIN_S = 86_400
MIN_KV_LEASE_S = 0.1
MAX_KV_LEASE_S = 86_400
MIN_BODY_BYTES = 2**10
MIN_STORE_BYTES = 2**20

LogLevel = Literal["debug", "info", "warning", "error"]


def _show_size(num_bytes: int | None) -> str | None:
    return None if num_bytes is None else format_size(num_bytes)


def _convert_size(_type: object, tokens: Sequence[Token]) -> int:
    token = tokens[0]
    try:
        return parse_size(token.value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{token.keyword}: {error.message}") from None


SIZE = Parameter(converter=_convert_size, metavar="SIZE", show_default=_show_size)


@Parameter(name="*", group=Group("Engine", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    dtype: DtypeChoice = "auto"
    """Type of weights, products and KV; auto: bfloat16 where the processor is fast at it, else float32."""
    weights: WeightsChoice = "auto"
    """Type that weights have in memory: auto, as --dtype says; bfloat16; int8 or int4 (groups of 64 or 32
    share a scale); as-file: 4-bit and 8-bit blocks of a GGUF file as they are. Not with --dtype float32; all
    but auto by C++ kernels, bfloat16 without."""
    device: DeviceKind = "cpu"
    """cuda also means AMD's GPUs, through ROCm's PyTorch."""
    attention: AttentionChoice = "torch"
    """kernel: by the C++ kernel, on a CPU with AVX2 or AVX-512; torch: by PyTorch."""
    max_model_len: int | None = None
    """Longest prompt and answer together, in tokens; by default what the model and the KV pool allow."""
    max_num_seqs: int = _OPTIONS.max_num_seqs
    """Most sequences that run at once; the others wait."""
    max_num_batched_tokens: int = _OPTIONS.max_num_batched_tokens
    """Most tokens that one step computes: the chunk size of long prompts."""
    block_size: Literal[16, 32] = 32
    """Tokens in a KV block."""
    kv_memory: Annotated[int | None, SIZE] = None
    """Memory of the KV pool of each worker, such as 2GiB; by default the smaller of a quarter of the free
    memory, which the workers that start together share, and 32 full contexts, at least one context."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """Which waiting request runs first: the oldest, or the one of the lowest priority number."""
    prefix_cache: bool = True
    """Reuse the KV of prompt prefixes seen before."""
    chunked_prefill: bool = True
    """Compute long prompts in chunks between the tokens of running answers."""
    kv_lease: float = DEFAULT_KV_LEASE_S
    """Seconds (0.1 to 86400) that KV waits to be taken over by another worker; once blocks are on their
    way, a hand-off ends after a fifteenth of them without another."""
    threads: int | None = None
    """Threads of each worker's arithmetic; by default one for each core that it may use."""

    def __post_init__(self) -> None:
        if not MIN_KV_LEASE_S <= self.kv_lease <= MAX_KV_LEASE_S:
            raise ConfigurationError(
                f"--kv-lease is {self.kv_lease:g} s; it must lie between {MIN_KV_LEASE_S:g} and "
                f"{MAX_KV_LEASE_S} s, a day"
            )

    def to_options(self, threads: int | None, memory_sharers: int = 1) -> EngineOptions:
        """Raises ConfigurationError for a value out of range."""
        return EngineOptions(
            dtype=self.dtype,
            weights=self.weights,
            device=self.device,
            attention=self.attention,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            kv_memory=self.kv_memory,
            scheduling_policy=self.scheduling_policy,
            enable_prefix_cache=self.prefix_cache,
            enable_chunked_prefill=self.chunked_prefill,
            threads=threads,
            memory_sharers=memory_sharers,
        )


@Parameter(name="*", group=Group("Gateway", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class GatewayFlags:
    chat_template: Path | None = None
    """Jinja file with the chat template; by default the model's own."""
    reasoning_parser: str | None = None
    """How models tell their reasoning from their answer: a name of docs/reasoning.md, or none; by default as
    each one's chat template shows."""
    tool_call_parser: str | None = None
    """How models write tool calls: a name of docs/tool-calls.md; by default as each one's chat template
    shows."""
    admin_token_file: Path | None = None
    """File with the token for the admin routes. ATOMESH_ADMIN_TOKEN goes before it; without either, one is
    made in ATOMESH_HOME/admin-token."""
    cors_origin: tuple[str, ...] = ()
    """Origin whose pages may call the API from a browser; repeat for several, * for all."""
    max_body: Annotated[int, SIZE] = 16 * 2**20
    """Longest request body, such as 16MiB."""
    response_store: Path | None = None
    """File in which answers of /v1/responses are kept, so that they outlive the gateway; by default they are
    kept in memory."""
    response_store_size: Annotated[int, SIZE] = 256 * 2**20
    """What they may come to, such as 256MiB; those unused for longest go first."""
    drain_timeout: float = 20.0
    """Seconds that running answers get to finish after SIGTERM or Ctrl-C."""
    backend: tuple[str, ...] = ()
    """An engine that is not ours: URL,kind=vllm|sglang|openai, and where wanted ,role=prefill|decode|unified
    ,model=FILES ,key-env=VARIABLE ,events=tcp://HOST:PORT ,replay=tcp://HOST:PORT for what it publishes of
    its KV cache; repeat for several. docs/add-a-backend.md describes them."""
    workers_file: Path | None = None
    """File with more workers, one address a line, looked at every second: who is added joins, who is taken
    out ends what it has and leaves; by default none."""
    await_workers: Annotated[bool, Parameter(negative=())] = False
    """Start without any worker: those that know the secret register themselves, with --gateway."""
    rebalance: Literal["off", "dry-run", "on"] = "off"
    """Give a worker of the pool at ease the role of the one that is not, or with dry-run only say so, in the
    log, a metric and GET /rebalance."""
    require_disaggregation: Annotated[bool, Parameter(negative=())] = False
    """Answer 503 rather than let one worker do both prefill and decode of a request."""
    prefix_fetch: bool = True
    """Let a worker have the beginning of a prompt sent by another that holds it, where that is quicker than
    to compute it."""
    policy: tuple[str, ...] = ()
    """How placement chooses workers: NAME, or prefill=NAME,decode=NAME for the two pools, with model=MODEL
    before it for one model alone; repeat for several. By default kv_aware. The others are least_work,
    round_robin, random, power_of_two, prefix_hash, cache_aware and session."""
    on_transfer_failure: Literal["recompute", "fail"] = "recompute"
    """What becomes of a request whose KV did not arrive: decode computes it again, or the client gets an
    error."""
    log_requests: Annotated[bool, Parameter(negative=())] = False
    """Write a line to the log for each request: its ids, status, counts and times, never what it says."""
    otlp_endpoint: str | None = None
    """Send traces of requests to this OpenTelemetry collector, such as http://127.0.0.1:4318; by default none
    are made. It needs atomesh[otel]."""

    def __post_init__(self) -> None:
        check_drain_timeout(self.drain_timeout)
        parse_policies(self.policy)
        if self.reasoning_parser is not None:
            parse_choice(self.reasoning_parser)
        if self.tool_call_parser is not None:
            check_dialect(self.tool_call_parser)
        if self.response_store_size < MIN_STORE_BYTES:
            raise ConfigurationError(
                f"--response-store-size is {self.response_store_size} bytes; it must be at least "
                f"{format_size(MIN_STORE_BYTES)}"
            )
        if self.max_body < MIN_BODY_BYTES:
            raise ConfigurationError(
                f"--max-body is {self.max_body} bytes; it must be at least {format_size(MIN_BODY_BYTES)}"
            )


@Parameter(name="*", group=Group("Process", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class ProcessFlags:
    secret_file: Path | None = None
    """File with the secret that gateways and workers share; by default one is made in ATOMESH_HOME/secret."""
    log_level: LogLevel = "warning"
    """Least urgent messages to write to stderr."""
    log_format: LogFormat = "text"
    """How to write them: text for people, or one JSON object a line."""
    enable_faults: Annotated[bool, Parameter(negative=())] = False
    """Let the operator break things on purpose, with POST /debug/fault; for tests."""


def check_drain_timeout(seconds: float) -> None:
    """Raises ConfigurationError."""
    if not 0 <= seconds <= MAX_DRAIN_S:
        raise ConfigurationError(
            f"--drain-timeout is {seconds:g} s; it must lie between 0 and {MAX_DRAIN_S} s, a day"
        )


ENGINE_DEFAULTS = EngineFlags()
GATEWAY_DEFAULTS = GatewayFlags()
PROCESS_DEFAULTS = ProcessFlags()


def to_argv(flags: "DataclassInstance") -> list[str]:
    """The words that make the command line parse back to `flags`; what is at its default is left out."""
    words: list[str] = []
    for field in fields(flags):
        value = getattr(flags, field.name)
        if value != _default(field):
            words += _words(field.name.replace("_", "-"), value)
    return words


def _default(field: "Field[Any]") -> object:
    return field.default if field.default is not MISSING else None


def _words(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, tuple):
        return [f"--{name}={item}" for item in value]
    return [f"--{name}={value}"]
