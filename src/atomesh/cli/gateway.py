"""`atomesh gateway`: the HTTP face over workers that run already, or will."""

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from atomesh.cli import environment
from atomesh.cli.access_flags import ACCESS_DEFAULTS, AccessFlags, open_door_warning
from atomesh.cli.flags import GATEWAY_DEFAULTS, PROCESS_DEFAULTS, GatewayFlags, ProcessFlags
from atomesh.cli.local_models import find_local_model
from atomesh.cli.process import announcer, die_with, log_to_stderr, on_stop_signals, run_async
from atomesh.cli.readiness import ServerAddress
from atomesh.cli.secret_files import cluster_secret, read_or_make_secret, read_secret
from atomesh.cli.text_side import read_text_side
from atomesh.clock import MonotonicClock
from atomesh.errors import ConfigurationError
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.templates.chat_template import check_override
from atomesh.listening import listen
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.dispatch.dispatcher import DispatchRules
from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.app import Gateway, GatewayOptions
from atomesh.mesh.gateway.discovery import DnsSource, FileSource, parse_dns
from atomesh.mesh.gateway.observability import Observability
from atomesh.mesh.gateway.served_models import TextSide
from atomesh.mesh.placement.placement import PlacementRules
from atomesh.mesh.placement.policies.rules import parse_policies
from atomesh.mesh.request_flow.flow import FlowRules
from atomesh.observability.log_format import LogFormat
from atomesh.observability.open_tracing import open_tracing
from atomesh.protocol.address import TcpAddress, parse_address
from atomesh.protocol.worker import ModelDescription

_log = logging.getLogger(__name__)


def gateway(
    *,
    worker: tuple[str, ...] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: tuple[str, ...] = (),
    model_alias: tuple[str, ...] = (),
    gateway: GatewayFlags = GATEWAY_DEFAULTS,
    access: AccessFlags = ACCESS_DEFAULTS,
    process: ProcessFlags = PROCESS_DEFAULTS,
    listener_fd: Annotated[int | None, Parameter(show=False)] = None,
    supervisor_pid: Annotated[int | None, Parameter(show=False)] = None,
) -> int:
    """Serve the OpenAI-compatible API from workers, which it reaches over the token plane.

    Parameters
    ----------
    worker
        Where a worker listens: HOST:PORT, unix:PATH, or dns:NAME:PORT for all addresses that NAME has, asked
        every 10 seconds; repeat for several.
    host
        Address to listen on; 0.0.0.0 for all of this machine's.
    port
        Port to listen on; 0 for any free one.
    api_key
        Key that clients must send as a Bearer token; repeat for several. ATOMESH_API_KEYS, separated by
        commas, adds to them; without any, everybody may ask.
    model_alias
        A further name: NAME for the first model, NAME=MODEL for another; repeat for several.
    """
    die_with(supervisor_pid)
    log_to_stderr(process.log_level, process.log_format)
    named, sources = split_workers(worker, gateway.workers_file)
    engines = check_someone_answers(worker, gateway)
    entry = access.to_options(environment.api_keys(api_key))
    if supervisor_pid is None:
        check_template(gateway.chat_template)
        check_workers_file(gateway.workers_file)
        access.check()
        warn_of_open_door(host, entry, process.log_format)
    listener = _listener(host, port, listener_fd)
    options = GatewayOptions(
        workers=named,
        discovery=sources,
        rebalance=gateway.rebalance,
        secret=cluster_secret(process.secret_file, environment.home()),
        admin_token=admin_token(gateway.admin_token_file, environment.home()),
        access=entry,
        tls=access.tls,
        cors_origins=gateway.cors_origin,
        model_aliases=model_alias,
        drain_s=gateway.drain_timeout,
        frontend=frontend_options(gateway),
        rules=DispatchRules(
            PlacementRules(gateway.require_disaggregation, may_fetch=gateway.prefix_fetch),
            FlowRules(gateway.on_transfer_failure),
            parse_policies(gateway.policy),
        ),
        enable_faults=process.enable_faults,
        observability=observability(gateway),
        engines=engines,
        find_model=partial(find_local_model, home=environment.home()),
    )
    announce = announcer(_log, supervisor_pid, process.log_format)
    tell = announcer(_log, None, process.log_format)
    run_async(lambda: _serve(options, gateway, listener, Voices(announce, tell)))
    return 0


def frontend_options(flags: GatewayFlags) -> FrontendOptions:
    return FrontendOptions(
        max_body_bytes=flags.max_body,
        response_store=flags.response_store,
        max_stored_bytes=flags.response_store_size,
    )


def split_workers(
    words: tuple[str, ...], file: Path | None
) -> tuple[tuple[str, ...], tuple[FileSource | DnsSource, ...]]:
    """The addresses, and where there are more of them. Raises ConfigurationError."""
    dns = tuple(source for word in words if (source := parse_dns(word)) is not None)
    named = tuple(word for word in words if parse_dns(word) is None)
    for address in named:
        parse_address(address)
    return named, dns if file is None else (*dns, FileSource(file))


def check_workers_file(path: Path | None) -> None:
    """Raises ConfigurationError for a --workers-file that cannot be read, or names what is no address."""
    if path is not None:
        FileSource(path).check()


def awaited(options: GatewayOptions) -> str:
    """Where a worker may come from."""
    places = [f"at {place}" for place in (*options.workers, *(spec.url for spec in options.engines))]
    places += [f"that {source.name} names" for source in options.discovery]
    return " or ".join(places) or "that registers itself"


def observability(flags: GatewayFlags) -> Observability:
    """Raises ConfigurationError when traces are wanted and cannot be had."""
    endpoint = flags.otlp_endpoint
    return Observability(flags.log_requests, None if endpoint is None else open_tracing(endpoint))


def check_someone_answers(workers: tuple[str, ...], flags: GatewayFlags) -> tuple[BackendSpec, ...]:
    """The engines that are not ours. Raises ConfigurationError when there are neither they nor workers."""
    engines = environment.backends(flags.backend)
    if not (workers or engines or flags.workers_file or flags.await_workers):
        raise ConfigurationError(
            "nobody would answer: name a worker with --worker, more with --workers-file, or an engine with "
            "--backend; workers that register themselves are waited for with --await-workers"
        )
    return engines


def check_template(path: Path | None) -> None:
    """Raises ConfigurationError for a --chat-template that cannot be read or is not valid."""
    if path is not None:
        check_override(path)


def warn_of_open_door(host: str, access: AccessOptions, log_format: LogFormat = "text") -> None:
    warning = open_door_warning(host, access)
    if warning is not None:
        announcer(_log, None, log_format)(f"atomesh: {warning}")


def admin_token(path: Path | None, home: Path) -> str:
    """ATOMESH_ADMIN_TOKEN, else what is in `path`, else this user's own, made on first use."""
    token = environment.admin_token()
    if token is not None:
        return token
    return read_or_make_secret(home / "admin-token") if path is None else read_secret(path)


def http_listener(host: str, port: int) -> socket.socket:
    """Raises ConfigurationError at once when the port is in use, or host or port are none."""
    if not host:
        raise ConfigurationError(
            "--host is empty; write an address of this machine, or 0.0.0.0 for all that it has"
        )
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"--port is {port}; it must lie between 0 and 65535, 0 for any free one")
    return listen(TcpAddress(host, port), "stop what listens there, or choose another port with --port")


def _listener(host: str, port: int, descriptor: int | None) -> socket.socket:
    return http_listener(host, port) if descriptor is None else socket.socket(fileno=descriptor)


def drain_line(answers: int, drain_s: float) -> str:
    plural = "" if answers == 1 else "s"
    return f"waiting for {answers} answer{plural}, at most {drain_s:g} s; Ctrl-C again stops now"


@dataclass(frozen=True, slots=True)
class Voices:
    """`announce` tells whoever started this process, a person or a supervisor; `tell` always a person."""

    announce: Callable[[str], None]
    tell: Callable[[str], None]


async def _serve(
    options: GatewayOptions, flags: GatewayFlags, listener: socket.socket, voices: Voices
) -> None:
    bound_host, bound_port = listener.getsockname()[:2]
    url = ServerAddress(bound_host, bound_port, is_tls=options.tls is not None).url

    def load_text(model: ModelDescription) -> TextSide:
        text = read_text_side(model, flags)
        voices.announce(f"gateway is ready on {url}: {model.name}")
        return text

    voices.announce(f"gateway listens on {url} and waits for a worker {awaited(options)}")

    gateway = Gateway(options, load_text, MonotonicClock())

    def stop() -> None:
        if gateway.num_running:
            voices.tell(drain_line(gateway.num_running, options.drain_s))
        gateway.stop()

    on_stop_signals(stop)
    try:
        await gateway.run(listener)
    finally:
        options.observability.close()
