"""`atomesh serve`: gateway and workers on this machine, as children of one supervisor."""

import asyncio
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from atomesh.cli import environment
from atomesh.cli.access_flags import ACCESS_DEFAULTS, AccessFlags
from atomesh.cli.banner import Ready, print_ready, print_starting
from atomesh.cli.core_shares import CoreShare, check_threads, share_cores, usable_cores
from atomesh.cli.flags import (
    ENGINE_DEFAULTS,
    GATEWAY_DEFAULTS,
    PROCESS_DEFAULTS,
    EngineFlags,
    GatewayFlags,
    ProcessFlags,
    to_argv,
)
from atomesh.cli.gateway import (
    admin_token,
    check_template,
    check_workers_file,
    http_listener,
    warn_of_open_door,
)
from atomesh.cli.kv_address import ChosenTransport, KVTransport, choose_kv_transport, local_kv_listen
from atomesh.cli.pools import Pools, Seat, choose_pools
from atomesh.cli.process import log_to_stderr, on_stop_signals
from atomesh.cli.readiness import ServerAddress, reachable_host, wait_until_ready
from atomesh.cli.restart_policy import EX_CONFIG
from atomesh.cli.saying import say
from atomesh.cli.secret_files import cluster_secret
from atomesh.cli.socket_directory import socket_directory
from atomesh.cli.supervisor import ChildSpec, Supervisor
from atomesh.frontend.openai.responses.response_store import check_response_store
from atomesh.protocol.address import UnixAddress

STOP_S = 5.0  # beyond the time for draining
GATEWAY_HEAD_START_S = 0.5  # before workers that outnumber the cores: it is to answer while they load
PREFILL_NICENESS = 5  # a gateway without a core of its own runs where prefill does, and goes first there


def serve(
    model: str | None = None,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    prefill: int | None = None,
    decode: int | None = None,
    unified: int | None = None,
    kv_transport: KVTransport = "auto",
    served_model_name: tuple[str, ...] = (),
    api_key: tuple[str, ...] = (),
    json: Annotated[bool, Parameter(negative=())] = False,
    engine: EngineFlags = ENGINE_DEFAULTS,
    gateway: GatewayFlags = GATEWAY_DEFAULTS,
    access: AccessFlags = ACCESS_DEFAULTS,
    process: ProcessFlags = PROCESS_DEFAULTS,
) -> int:
    """Serve a model on this machine, with an OpenAI-compatible API.

    Parameters
    ----------
    model
        A directory or GGUF file, a name of `atomesh models`, or, where huggingface_hub is installed, a hub
        id; by default the default model,
        which is fetched once.
    host
        Address to listen on; 0.0.0.0 for all of this machine's.
    port
        Port to listen on; 0 for any free one.
    prefill
        Number of workers that compute prompts and hand their KV to a decode worker; by default 1, and 0 where
        --unified is given. All workers share out the cores.
    decode
        Number of workers that generate the answers' tokens from there; by default 1, and 0 where --unified is
        given.
    unified
        Number of workers that each do both prefill and decode; by default 0, and 1 on devices whose KV cannot
        be handed over.
    kv_transport
        How KV moves between the workers: shm is shared memory, tcp a socket on loopback; auto is shm where
        the system has it, else tcp.
    served_model_name
        Name of the model for clients; repeat for further names. By default the model's own.
    api_key
        Key that clients must send as a Bearer token; repeat for several. ATOMESH_API_KEYS, separated by
        commas, adds to them; without any, everybody may ask.
    json
        Write one JSON document to stdout, once ready, instead of text.
    """
    log_to_stderr(process.log_level, process.log_format)
    can_hand_over = engine.device == "cpu"
    pools = choose_pools(prefill, decode, unified, can_hand_over=can_hand_over)
    transport = choose_kv_transport(kv_transport, can_hand_over=can_hand_over)
    if pools.total == 1:  # nobody is there to hand KV to
        transport = "off"
    check_threads(engine.threads)
    engine.to_options(engine.threads)
    check_template(gateway.chat_template)
    check_workers_file(gateway.workers_file)
    check_response_store(gateway.response_store)
    keys = environment.api_keys(api_key)
    entry = access.to_options(keys)
    access.check()
    cluster_secret(process.secret_file, environment.home())
    operator = admin_token(gateway.admin_token_file, environment.home())
    listener = http_listener(host, port)
    warn_of_open_door(host, entry, process.log_format)
    server = ServerAddress(
        reachable_host(host),
        listener.getsockname()[1],
        operator,
        needs_key=entry.tenants.need_key,
        is_tls=access.tls is not None,
    )
    with socket_directory() as sockets:
        flags = _Flags(model, served_model_name, keys, engine, gateway, access, process, transport)
        workers = _workers(flags, pools, sockets)
        addresses = [str(_socket(sockets, seat)) for seat in pools.seats]
        specs = [_gateway(flags, addresses, listener), *workers]
        return asyncio.run(_supervise(specs, listener, server, json))


@dataclass(frozen=True, slots=True)
class _Flags:
    model: str | None
    names: tuple[str, ...]
    keys: tuple[str, ...]
    engine: EngineFlags
    gateway: GatewayFlags
    access: AccessFlags
    process: ProcessFlags
    kv_transport: ChosenTransport


def _gateway(flags: _Flags, workers: list[str], listener: socket.socket) -> ChildSpec:
    words = [
        "gateway",
        *(f"--worker={address}" for address in workers),
        *(f"--model-alias={name}" for name in flags.names[1:]),
        f"--listener-fd={listener.fileno()}",
        *to_argv(flags.gateway),
        *to_argv(flags.access),
        *to_argv(flags.process),
    ]
    return ChildSpec(
        name="gateway",
        words=words,
        stop_s=flags.gateway.drain_timeout + STOP_S,
        environment={"ATOMESH_API_KEYS": ",".join(flags.keys)},
        inherited_fds=(listener.fileno(),),
    )


def _workers(flags: _Flags, pools: Pools, sockets: Path) -> list[ChildSpec]:
    cores = usable_cores()
    shares = share_cores(cores, pools.total)
    return [
        ChildSpec(
            name=f"worker {seat.worker_id}",
            words=["worker", *_worker_words(flags, seat, sockets), *_place(pools, seat, share)],
            stop_s=STOP_S,
            head_start_s=GATEWAY_HEAD_START_S if pools.total > len(cores) else 0.0,
        )
        for seat, share in zip(pools.seats, shares, strict=True)
    ]


def _worker_words(flags: _Flags, seat: Seat, sockets: Path) -> list[str]:
    address = _socket(sockets, seat)
    return [
        *([flags.model] if flags.model is not None else []),
        f"--listen={address}",
        f"--kv-listen={local_kv_listen(flags.kv_transport, address)}",
        f"--role={seat.role}",
        f"--worker-id={seat.worker_id}",
        "--drain-timeout=1",
        *(f"--served-model-name={name}" for name in flags.names[:1]),
        *to_argv(flags.engine),
        *to_argv(flags.process),
    ]


def _place(pools: Pools, seat: Seat, share: CoreShare) -> list[str]:
    """A worker alone needs no cores of its own, and has all memory to itself."""
    if pools.total == 1:
        return []
    yields = [f"--niceness={PREFILL_NICENESS}"] if seat.role == "prefill" else []
    return [*(f"--cores={core}" for core in share), f"--memory-sharers={pools.total}", *yields]


def _socket(sockets: Path, seat: Seat) -> UnixAddress:
    return UnixAddress(str(sockets / f"{seat.worker_id}.sock"))


async def _supervise(
    specs: list[ChildSpec], listener: socket.socket, server: ServerAddress, as_json: bool
) -> int:
    supervisor = Supervisor(specs)
    on_stop_signals(supervisor.stop)
    print_starting(server.url, as_json)
    announcing = asyncio.create_task(_announce(supervisor, server, as_json))
    failure = await supervisor.run(on_stopping=listener.close)
    announcing.cancel()
    if failure is None:
        return 0
    say(f"atomesh: {failure.words}")
    return EX_CONFIG if failure.status == EX_CONFIG else 1


async def _announce(supervisor: Supervisor, server: ServerAddress, as_json: bool) -> None:
    began = time.monotonic()
    served = await wait_until_ready(server)
    supervisor.has_served = True
    seconds = time.monotonic() - began
    print_ready(Ready(server.url, served, seconds, server.needs_key, os.getpid()), as_json)
