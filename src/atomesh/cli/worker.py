"""`atomesh worker`: one engine, served over the token plane."""

import logging
import os
import secrets
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from atomesh.byte_size import format_size
from atomesh.cli import environment
from atomesh.cli.compute_share import claim_cores
from atomesh.cli.core_shares import check_cores, check_threads
from atomesh.cli.flags import (
    ENGINE_DEFAULTS,
    PROCESS_DEFAULTS,
    EngineFlags,
    ProcessFlags,
    check_drain_timeout,
)
from atomesh.cli.kv_address import kv_listen_address
from atomesh.cli.model_progress import show_progress
from atomesh.cli.process import (
    announcer,
    die_with,
    end_on_sigterm,
    log_to_stderr,
    on_stop_signals,
    run_async,
)
from atomesh.cli.publish_flags import PUBLISH_DEFAULTS, PublishFlags
from atomesh.cli.secret_files import cluster_secret
from atomesh.clock import MonotonicClock
from atomesh.engine.registrar import KeptRegistration
from atomesh.engine.registration_plan import RegistrationPlan
from atomesh.engine.token_plane import Identity
from atomesh.engine.worker import Worker, WorkerOptions
from atomesh.engine.worker_spec import WorkerSpec
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.model_files.resolve import resolve_model
from atomesh.protocol.address import parse_address
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.worker import Role, WorkerDescription

if TYPE_CHECKING:
    from atomesh.engine.options import EngineOptions
    from atomesh.engine.worker_engine import WorkerEngine
    from atomesh.grammars.vocabulary import Vocabulary
    from atomesh.model_files.checkpoint import Checkpoint

_log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005


def worker(
    model: str | None = None,
    /,
    *,
    listen: str = "127.0.0.1:8100",
    role: Role = "unified",
    kv_listen: str | None = None,
    served_model_name: str | None = None,
    worker_id: str | None = None,
    cores: tuple[int, ...] = (),
    niceness: Annotated[int, Parameter(show=False)] = 0,
    memory_sharers: Annotated[int, Parameter(show=False)] = 1,
    drain_timeout: float = 20.0,
    gateway: tuple[str, ...] = (),
    advertise: str | None = None,
    engine: EngineFlags = ENGINE_DEFAULTS,
    process: ProcessFlags = PROCESS_DEFAULTS,
    publish: PublishFlags = PUBLISH_DEFAULTS,
    supervisor_pid: Annotated[int | None, Parameter(show=False)] = None,
) -> int:
    """Serve a model's tokens to gateways that know the secret.

    Parameters
    ----------
    model
        A directory or GGUF file, a name of `atomesh models`, or, where huggingface_hub is installed, a hub
        id; by default the default model.
    listen
        Where to listen: HOST:PORT or unix:PATH.
    role
        What this worker is offered at first; unified is both prefill and decode, parked neither. The operator
        can change it while it runs.
    kv_listen
        Where other workers hand KV over: unix:PATH through shared memory, HOST:PORT over TCP, or off. By
        default beside --listen, on a free port or at PATH.kv.
    served_model_name
        Name of the model for clients; by default the model's own.
    worker_id
        Name of this worker; by default where it listens.
    cores
        Number of a core to run on, repeated for several; by default all that this process may use.
    drain_timeout
        Seconds that running requests get to finish after SIGTERM.
    gateway
        URL of a gateway to register with, such as http://127.0.0.1:8000; repeat for several. It must know the
        same secret.
    advertise
        Where these gateways reach this worker: HOST:PORT or unix:PATH; by default where it listens.
    """
    die_with(supervisor_pid)
    end_on_sigterm()
    log_to_stderr(process.log_level, process.log_format)
    address = parse_address(listen)
    check_drain_timeout(drain_timeout)
    check_cores(cores)
    check_threads(engine.threads)
    plan = RegistrationPlan(gateway, advertise)
    plan.check(listen)
    threads = claim_cores(cores, engine.threads, niceness)
    secret = cluster_secret(process.secret_file, environment.home())
    spec = WorkerSpec(
        secret=secret,
        incarnation=secrets.token_hex(16),
        kv_listen=kv_listen_address(address, kv_listen, role),
        kv_lease_s=engine.kv_lease,
        faults=FaultPoints() if process.enable_faults else NoFaults(),
        publish=publish.address(),
    )
    made = _build(model, served_model_name, spec, engine.to_options(threads, memory_sharers))
    name = worker_id or str(address)
    description = _describe(made, name, spec.incarnation, role, engine, process.enable_faults)
    options = WorkerOptions(Identity(secret, description), address, drain_timeout, spec.faults)
    say = announcer(_log, supervisor_pid, process.log_format)
    run_async(lambda: _serve(made, options, plan, lambda at: say(ready_line(description, at, threads))))
    made.engine.close()
    return 0


def _describe(
    made: "WorkerEngine",
    worker_id: str,
    incarnation: str,
    role: Role,
    engine: EngineFlags,
    takes_faults: bool,
) -> WorkerDescription:
    return WorkerDescription(
        worker_id=worker_id,
        incarnation=incarnation,
        pid=os.getpid(),
        role=role,
        model=made.engine.description,
        kv_address=made.kv_address,
        kv_layout=made.kv_layout,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        takes_faults=takes_faults,
        roofline=made.roofline,
    )


def _build(
    model: str | None, served_name: str | None, spec: WorkerSpec, options: "EngineOptions"
) -> "WorkerEngine":
    local = resolve_model(model, environment.home(), show_progress())
    from atomesh.engine.build import build_parts  # imports torch
    from atomesh.engine.structured_output.grammars import GrammarCache
    from atomesh.engine.worker_engine import assemble

    checkpoint = open_checkpoint(local.path)
    parts = build_parts(checkpoint, options, served_name or local.name)
    made = assemble(parts, spec, MonotonicClock())
    made.engine.obey_grammars(GrammarCache(lambda: _vocabulary(checkpoint)))
    return made


def _vocabulary(checkpoint: "Checkpoint") -> "Vocabulary":
    """For the first grammar; a worker that never sees one never loads a tokenizer."""
    from atomesh.frontend.structured_output.model_vocabulary import load_vocabulary

    return load_vocabulary(checkpoint)


async def _serve(
    made: "WorkerEngine",
    options: WorkerOptions,
    plan: RegistrationPlan,
    announce: Callable[[str], None],
) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    worker = Worker(made.engine, options, MonotonicClock(), made.doorbell)
    registration = KeptRegistration()

    def stop() -> None:
        worker.stop()
        registration.end()

    on_stop_signals(stop)

    def on_ready(address: str) -> None:
        announce(address)
        made.warm_up()
        registration.begin(plan.registrar(options.identity, address))

    try:
        await worker.run(on_ready)
    finally:
        await registration.over()


def ready_line(worker: WorkerDescription, address: str, threads: int) -> str:
    model = worker.model
    return (
        f"worker {worker.worker_id} is ready on {address}: {model.name}, {model.dtype}, {threads} threads, "
        f"KV pool {format_size(model.kv_bytes)} ({model.kv_tokens} tokens), "
        f"max_model_len {model.max_model_len}"
    )
