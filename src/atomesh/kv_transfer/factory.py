"""The one door to a KV transport: the address says which."""

from collections.abc import Callable

from atomesh.errors import ConfigurationError
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.plane import Plane
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.socket_transport import SocketTransport
from atomesh.protocol.address import UnixAddress, parse_address
from atomesh.protocol.fault_points import FaultPoints, NoFaults


def make_transport(
    listen: str,
    pool: PoolMemory,
    identity: KVIdentity,
    on_event: Callable[[], None],
    faults: FaultPoints | None = None,
) -> SocketTransport:
    """Listens at `listen`: `unix:PATH` for shared memory on this host, `HOST:PORT` for a wire.

    `on_event` is called in the transport's own thread when there is something to poll, or when something was
    refused. Raises ConfigurationError when the address cannot be had, or the pool does not fit the layout.
    """
    if pool.block_bytes != identity.layout.block_bytes:
        raise ConfigurationError(
            f"the pool's blocks have {pool.block_bytes} bytes, the layout's {identity.layout.block_bytes}"
        )
    address = parse_address(listen)
    if isinstance(address, UnixAddress) and pool.fd is None:
        raise ConfigurationError(f"shared memory needs Linux; write --kv-listen HOST:PORT, not {listen}")
    return SocketTransport(address, Plane(pool, identity, faults or NoFaults()), on_event)
