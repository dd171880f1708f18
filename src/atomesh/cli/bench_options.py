"""The flags of `atomesh bench`, and the plan they describe."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Group, Parameter

from atomesh.bench.prompts import PromptWriter, TokenIdWriter, WordWriter
from atomesh.bench.trace import read_trace
from atomesh.bench.workload import (
    PlannedRequest,
    SyntheticTraffic,
    plan_synthetic,
    plan_trace,
    with_random_arrivals,
)
from atomesh.errors import ConfigurationError

DEFAULT_CONCURRENCY = 4
DEFAULT_PROMPTS = 32


@Parameter(name="*", group=Group("Server", sort_key=0))
@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    url: str = "http://127.0.0.1:8000"
    """Root of the server, with or without /v1."""
    model: str | None = None
    """Model to ask for; by default the first that the server lists."""
    endpoint: Literal["completions", "chat"] = "completions"
    """API to call."""
    api_key: Annotated[str | None, Parameter(env_var="OPENAI_API_KEY")] = None
    """Key to send as a bearer token."""
    timeout: float = 600.0
    """Seconds that one request may take; a longer one has failed."""


@Parameter(name="*", group=Group("Requests", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    num_prompts: Annotated[int | None, Parameter(name=("--num-prompts", "-n"))] = None
    """Number of requests; by default 32, or the whole trace."""
    input_len: int = 256
    """Prompt length in tokens, the prefix apart; the mean for conversations."""
    output_len: int = 64
    """Answer length in tokens; the mean for conversations."""
    lengths: Literal["random", "conversation"] = "random"
    """How lengths spread: evenly (see --range-ratio), or log-normally as in real chats."""
    range_ratio: float = 0.0
    """Random lengths lie within this share (0 to 1) of the given length on either side."""
    prefix_len: int = 0
    """Tokens at the start of each prompt that all have in common."""
    prompts: Literal["auto", "ids", "words"] = "auto"
    """Send token ids (of exact length) or common words; auto: ids for completions, words for chat."""
    vocab_size: int = 30_000
    """Token ids are drawn below this."""
    temperature: float = 0.0
    """Sampling temperature."""
    ignore_eos: Annotated[bool, Parameter(negative="--stop-at-eos")] = True
    """Ask for answers of the full length, or let the model end them."""
    seed: int = 0
    """Seed of the lengths, prompts and arrivals."""


@Parameter(name="*", group=Group("Load", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    request_rate: Annotated[float | None, Parameter(name=("--request-rate", "-r"))] = None
    """Open loop: mean arrivals in requests/s, Poisson; inf sends all at once."""
    burstiness: float = 1.0
    """Shape of the gamma-distributed gaps: 1 Poisson, less is burstier, more is steadier."""
    concurrency: Annotated[int | None, Parameter(name=("--concurrency", "--max-concurrency", "-c"))] = None
    """Most requests in flight; alone, a closed loop, of 4 when there is no rate and no trace either."""
    trace: Path | None = None
    """Replay a recorded trace: Mooncake's JSON lines or Azure's CSV. A rate replaces its arrivals."""
    trace_speed: float = 1.0
    """Times as fast as recorded."""
    length_scale: float = 1.0
    """Times as long as recorded."""
    warmups: int = 1
    """Requests before the measured ones; at least 1, which also finds out what the server supports."""


@Parameter(name="*", group=Group("Report", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    goodput: Annotated[
        tuple[str, ...], Parameter(consume_multiple=True, negative="", show_default=False)
    ] = ()
    """Objectives in ms that a good request meets: ttft:500 tpot:50 e2el:5000, any of them."""
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Print one JSON document on stdout, and everything else on stderr."""
    per_request: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """With --json, add each request's own figures."""


SERVER_DEFAULTS = ServerOptions()
REQUEST_DEFAULTS = RequestOptions()
LOAD_DEFAULTS = LoadOptions()
REPORT_DEFAULTS = ReportOptions()


@dataclass(frozen=True, slots=True)
class Plan:
    """`rate` is None where the arrivals are a trace's or there are none.

    `words` describe the whole for a reader.
    """

    requests: tuple[PlannedRequest, ...]
    writer: PromptWriter
    rate: float | None
    concurrency: int | None
    words: str


def make_plan(server: ServerOptions, requests: RequestOptions, load: LoadOptions) -> Plan:
    """Raises ConfigurationError for flags that contradict each other or make no request."""
    for name, value in (("--concurrency", load.concurrency), ("--warmups", load.warmups)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{name} is {value}; it must be at least 1")
    if load.trace is None:
        planned = _plan_synthetic(requests, load)
        words = f"{requests.lengths} lengths, {requests.input_len} tokens in, {requests.output_len} out"
    else:
        planned = _plan_trace(load.trace, requests, load)
        words = f"trace {load.trace.name}"
    is_default = load.request_rate is None and load.trace is None and load.concurrency is None
    return Plan(
        requests=tuple(planned),
        writer=_writer(server, requests),
        rate=load.request_rate,
        concurrency=DEFAULT_CONCURRENCY if is_default else load.concurrency,
        words=words,
    )


def _plan_synthetic(requests: RequestOptions, load: LoadOptions) -> list[PlannedRequest]:
    traffic = SyntheticTraffic(
        count=DEFAULT_PROMPTS if requests.num_prompts is None else requests.num_prompts,
        input_tokens=requests.input_len,
        output_tokens=requests.output_len,
        kind=requests.lengths,
        range_ratio=requests.range_ratio,
        prefix_tokens=requests.prefix_len,
        rate=math.inf if load.request_rate is None else load.request_rate,
        burstiness=load.burstiness,
    )
    return plan_synthetic(traffic, np.random.default_rng(requests.seed))


def _plan_trace(path: Path, requests: RequestOptions, load: LoadOptions) -> list[PlannedRequest]:
    entries = read_trace(path, requests.num_prompts)
    planned = plan_trace(entries, speed=load.trace_speed, length_scale=load.length_scale)
    if load.request_rate is None:
        return planned
    rng = np.random.default_rng(requests.seed)
    return with_random_arrivals(planned, load.request_rate, rng, burstiness=load.burstiness)


def _writer(server: ServerOptions, requests: RequestOptions) -> PromptWriter:
    if server.endpoint == "chat" and requests.prompts == "ids":
        raise ConfigurationError("--prompts ids needs --endpoint completions: a chat message is text")
    if server.endpoint == "chat" or requests.prompts == "words":
        return WordWriter(requests.seed)
    return TokenIdWriter(requests.vocab_size, requests.seed)
