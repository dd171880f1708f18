"""What tells one worker from another."""

from dataclasses import dataclass, field

from atomesh.engine.zmq_publisher import PublisherAddress
from atomesh.protocol.fault_points import FaultPoints, NoFaults

DEFAULT_KV_LEASE_S = 30.0


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """`kv_listen` is where the KV plane listens, None for a worker without one.

    `publish` is where others hear of its prefix cache, with the tokens in it; None: nowhere.

    KV waits `kv_lease_s` seconds to be taken over; all other waits of a hand-off are shares of that, as
    `RemoteKVConfig` has them.
    """

    secret: bytes = field(repr=False)
    incarnation: str
    kv_listen: str | None
    kv_lease_s: float = DEFAULT_KV_LEASE_S
    faults: FaultPoints = field(default_factory=NoFaults)
    publish: PublisherAddress | None = None
