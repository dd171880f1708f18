"""Sockets for the KV plane, none of which ever blocks."""

import errno
import os
import socket
from ipaddress import ip_address

from atomesh import listening
from atomesh.errors import ConfigurationError
from atomesh.protocol.address import Address, TcpAddress, UnixAddress


def listen(address: Address) -> socket.socket:
    """Raises ConfigurationError when the address cannot be had, or is none that others can call."""
    if isinstance(address, TcpAddress) and address.host in ("0.0.0.0", "::"):  # noqa: S104 - refused
        raise ConfigurationError(
            f"--kv-listen is {address}; other workers need an address of this host that they can call"
        )
    return listening.listen(address, "choose another with --kv-listen")


def call(address: Address) -> socket.socket:
    """A socket that is being connected: writable once that is decided. Raises OSError.

    A host is a number, as `bound_address` says it: to look a name up could block.
    """
    if isinstance(address, UnixAddress):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: str | tuple[str, int] = address.path
    else:
        sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
        target = (str(ip_address(address.host)), address.port)
    try:
        sock.setblocking(False)
        listening.settle(sock)
        code = sock.connect_ex(target)
    except OSError:
        sock.close()
        raise
    if code not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock
