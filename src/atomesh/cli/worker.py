"""`atomesh worker`: one engine, served over the token plane."""

import logging
import os
import secrets
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from atomesh.cli import environment
from atomesh.cli.compute_share import claim_cores
from atomesh.cli.flags import ENGINE_DEFAULTS, PROCESS_DEFAULTS, EngineFlags, ProcessFlags
from atomesh.cli.model_progress import show_progress
from atomesh.cli.process import die_with, end_on_sigterm, log_to_stderr, on_stop_signals, run_async
from atomesh.cli.secret_files import cluster_secret
from atomesh.clock import MonotonicClock
from atomesh.engine.token_plane import Identity
from atomesh.engine.worker import Worker, WorkerOptions
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.model_files.resolve import resolve_model
from atomesh.protocol.address import parse_address
from atomesh.protocol.worker import Role, WorkerDescription

if TYPE_CHECKING:
    from atomesh.engine.engine import Engine
    from atomesh.engine.options import EngineOptions

_log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005


def worker(
    model: str | None = None,
    /,
    *,
    listen: str = "127.0.0.1:8100",
    role: Role = "unified",
    served_model_name: str | None = None,
    worker_id: str | None = None,
    cores: tuple[int, ...] = (),
    niceness: Annotated[int, Parameter(show=False)] = 0,
    drain_timeout: float = 20.0,
    engine: EngineFlags = ENGINE_DEFAULTS,
    process: ProcessFlags = PROCESS_DEFAULTS,
    supervisor_pid: Annotated[int | None, Parameter(show=False)] = None,
) -> int:
    """Serve a model's tokens to gateways that know the secret.

    Parameters
    ----------
    model
        A directory or GGUF file, a name of `atomesh models`, or a hub id; by default the default model.
    listen
        Where to listen: HOST:PORT or unix:PATH.
    role
        What this worker is offered at first; unified is both prefill and decode. The operator can change it
        while it runs.
    served_model_name
        Name of the model for clients; by default the model's own.
    worker_id
        Name of this worker; by default where it listens.
    cores
        Core to run on, repeated for several; by default all that this process may use.
    drain_timeout
        Seconds that running requests get to finish after SIGTERM.
    """
    die_with(supervisor_pid)
    end_on_sigterm()
    log_to_stderr(process.log_level)
    address = parse_address(listen)
    threads = claim_cores(cores, engine.threads, niceness)
    secret = cluster_secret(process.secret_file, environment.home())
    made = _build(model, served_model_name, secret, engine.to_options(threads))
    description = WorkerDescription(
        worker_id=worker_id or str(address),
        incarnation=secrets.token_hex(16),
        pid=os.getpid(),
        role=role,
        model=made.description,
    )
    run_async(lambda: _serve(made, WorkerOptions(Identity(secret, description), address, drain_timeout)))
    made.close()
    return 0


def _build(model: str | None, served_name: str | None, secret: bytes, options: "EngineOptions") -> "Engine":
    local = resolve_model(model, environment.home(), show_progress())
    from atomesh.engine.build import build_engine  # imports torch

    return build_engine(
        open_checkpoint(local.path),
        options,
        secret=secret,
        served_name=served_name or local.name,
        clock=MonotonicClock(),
    )


async def _serve(engine: "Engine", options: WorkerOptions) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    worker = Worker(engine, options, MonotonicClock())
    on_stop_signals(worker.stop)
    await worker.run(lambda address: _log.info("listening on %s", address))
