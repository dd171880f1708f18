"""A worker's engine: with its KV plane, where it has one."""

from collections.abc import Callable
from dataclasses import dataclass

from atomesh.clock import Clock
from atomesh.engine.core.remote_kv.config import RemoteKVConfig
from atomesh.engine.core.scheduler import Scheduler
from atomesh.engine.doorbell import Doorbell
from atomesh.engine.engine import Engine
from atomesh.engine.execution.faulty_executor import FaultyExecutor
from atomesh.engine.executor import Executor
from atomesh.engine.kv_connector import KVConnector
from atomesh.engine.parts import EngineParts
from atomesh.engine.publishing import publishing
from atomesh.engine.recorded_transport import RecordedTransport
from atomesh.engine.step_recorder import StepRecorder
from atomesh.engine.worker_spec import WorkerSpec
from atomesh.errors import ConfigurationError
from atomesh.kv_transfer.factory import make_transport
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.kv_layout import KVLayout
from atomesh.protocol.roofline import Roofline


@dataclass(frozen=True, slots=True)
class WorkerEngine:
    """`doorbell` rings when the engine has something to do that nobody has asked it for.

    `warm_up` is to be called once the worker is ready.
    """

    engine: Engine
    doorbell: Doorbell
    warm_up: Callable[[], None]
    roofline: Roofline
    kv_address: str | None = None
    kv_layout: KVLayout | None = None


def assemble(parts: EngineParts, spec: WorkerSpec, clock: Clock) -> WorkerEngine:
    """Raises ConfigurationError when the address of the KV plane or of the published events cannot be had, or
    the device has no KV plane."""
    doorbell = Doorbell()
    executor = _executor(parts, spec.faults)
    hasher, sink = publishing(parts.description, spec.secret, spec.publish)
    if spec.kv_listen is None:
        scheduler = Scheduler(parts.limits, hasher)
        engine = Engine(scheduler, executor, clock, parts.description)
        engine.publish_to(sink)
        return WorkerEngine(engine, doorbell, parts.warm_up, parts.roofline)
    if parts.memory is None:
        raise ConfigurationError("KV on this device cannot be handed over yet; use --kv-listen off")
    layout = parts.layout()
    identity = KVIdentity(spec.secret, spec.incarnation, layout)
    recorder = StepRecorder(clock)
    transport = RecordedTransport(
        make_transport(spec.kv_listen, parts.memory, identity, doorbell.ring, spec.faults),
        recorder,
        clock,
        layout.block_bytes,
    )
    remote = RemoteKVConfig(
        secret=spec.secret,
        incarnation=spec.incarnation,
        lease_s=spec.kv_lease_s,
        block_bytes=layout.block_bytes,
    )
    scheduler = Scheduler(parts.limits, hasher, remote)
    connector = KVConnector(scheduler.remote_kv, transport, clock, spec.faults)
    engine = Engine(scheduler, executor, clock, parts.description, connector, recorder)
    engine.publish_to(sink)
    return WorkerEngine(engine, doorbell, parts.warm_up, parts.roofline, transport.address, layout)


def _executor(parts: EngineParts, faults: FaultPoints) -> Executor:
    return parts.executor if isinstance(faults, NoFaults) else FaultyExecutor(parts.executor, faults)
