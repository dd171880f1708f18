"""Where a worker's KV plane listens."""

import sys

from atomesh.errors import ConfigurationError
from atomesh.protocol.address import MAX_UNIX_PATH_BYTES, Address, TcpAddress, UnixAddress, parse_address
from atomesh.protocol.worker import Role

OFF = "off"
WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104
SUFFIX = ".kv"


def kv_listen_address(listen: Address, asked: str | None, role: Role) -> str | None:
    """`asked`, else beside `listen`; None for a worker without a KV plane.

    Other workers connect to what is said here, so that a wildcard is no answer. Raises ConfigurationError
    where the role needs a KV plane and has none.
    """
    address = asked if asked is not None else _beside(listen)
    if address != OFF:
        parsed = parse_address(address)
        if isinstance(parsed, UnixAddress) or parsed.host not in WILDCARDS:
            return str(parsed)
        if asked is not None:
            raise ConfigurationError(
                f"--kv-listen is {asked}; other workers cannot connect to that: name one of this host's own "
                "addresses"
            )
    if role != "unified":
        raise ConfigurationError(
            f"a {role} worker gives KV or takes it, and has no address for that: name one with --kv-listen"
        )
    return None


def _beside(listen: Address) -> str:
    """A free port of the same host; a socket in the same directory, where memory can be shared over it."""
    if isinstance(listen, TcpAddress):
        return str(TcpAddress(listen.host, 0))
    if sys.platform != "linux":
        return str(TcpAddress("127.0.0.1", 0))
    path = listen.path + SUFFIX
    return f"unix:{path}" if len(path.encode()) <= MAX_UNIX_PATH_BYTES else OFF
