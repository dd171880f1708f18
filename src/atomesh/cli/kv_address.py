"""Where a worker's KV plane listens."""

from typing import Literal

from atomesh.errors import ConfigurationError
from atomesh.kv_transfer.pool_memory import can_share_memory
from atomesh.protocol.address import MAX_UNIX_PATH_BYTES, Address, TcpAddress, UnixAddress, parse_address
from atomesh.protocol.worker import Role

KVTransport = Literal["auto", "shm", "tcp"]
ChosenTransport = Literal["shm", "tcp", "off"]

OFF = "off"
LOOPBACK = TcpAddress("127.0.0.1", 0)
WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104
SUFFIX = ".kv"


def choose_kv_transport(asked: KVTransport, *, can_hand_over: bool) -> ChosenTransport:
    """How workers of this machine hand KV over: auto is shared memory where there is any.

    `can_hand_over`: whether their devices allow it at all; off is where they do not. Raises
    ConfigurationError for what was asked for by name and cannot be.
    """
    if not can_hand_over:
        if asked != "auto":
            raise ConfigurationError(
                f"--kv-transport is {asked}, and KV on this device cannot be handed over yet; "
                "leave --kv-transport out, or write --device cpu"
            )
        return "off"
    if asked == "tcp":
        return "tcp"
    if can_share_memory():
        return "shm"
    if asked == "shm":
        raise ConfigurationError(
            "--kv-transport is shm, and this system has no memory that processes can share, which takes "
            "Linux and its memfd_create; write --kv-transport tcp or auto"
        )
    return "tcp"


def local_kv_listen(transport: ChosenTransport, listen: UnixAddress) -> str:
    """--kv-listen of a worker that listens at `listen`, where only this machine can reach it."""
    return {"shm": f"{listen}{SUFFIX}", "tcp": str(LOOPBACK), "off": OFF}[transport]


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
    if role in ("prefill", "decode"):
        raise ConfigurationError(
            f"a {role} worker gives KV or takes it, and has no address for that: name one with --kv-listen"
        )
    return None


def _beside(listen: Address) -> str:
    """A free port of the same host; a socket in the same directory, where memory can be shared over it."""
    if isinstance(listen, TcpAddress):
        return str(TcpAddress(listen.host, 0))
    if not can_share_memory():
        return str(LOOPBACK)
    path = listen.path + SUFFIX
    return f"unix:{path}" if len(path.encode()) <= MAX_UNIX_PATH_BYTES else OFF
