"""What tells one worker from another."""

from dataclasses import dataclass, field

from atomesh.protocol.fault_points import FaultPoints, NoFaults


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """`kv_listen` is where the KV plane listens, None for a worker without one."""

    secret: bytes = field(repr=False)
    incarnation: str
    kv_listen: str | None
    faults: FaultPoints = field(default_factory=NoFaults)
