"""Sockets for the KV plane, none of which ever blocks."""

import errno
import os
import socket
import stat
from ipaddress import ip_address
from pathlib import Path

from atomesh.errors import ConfigurationError
from atomesh.protocol.address import Address, TcpAddress, UnixAddress

BACKLOG = 128


def listen(address: Address) -> socket.socket:
    """Raises ConfigurationError when the address cannot be had."""
    if isinstance(address, TcpAddress) and address.host in ("0.0.0.0", "::"):  # noqa: S104 - refused
        raise ConfigurationError(
            f"--kv-listen is {address}; other workers need an address of this host that they can call"
        )
    try:
        if isinstance(address, UnixAddress):
            listener = _listen_unix(address.path)
        else:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            listener = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise ConfigurationError(
            f"cannot listen on {address}: {reason}; choose another with --kv-listen"
        ) from error
    listener.setblocking(False)
    return listener


def bound_address(listener: socket.socket, asked: Address) -> Address:
    """Where others reach `listener`: its host as a number, and the port that the kernel chose for 0."""
    if isinstance(asked, UnixAddress):
        return asked
    host, port = listener.getsockname()[:2]
    return TcpAddress(host, port)


def forget(address: Address) -> None:
    """Remove what a closed listener leaves in the file system."""
    if isinstance(address, UnixAddress):
        Path(address.path).unlink(missing_ok=True)


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
        settle(sock)
        code = sock.connect_ex(target)
    except OSError:
        sock.close()
        raise
    if code not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


def settle(sock: socket.socket) -> None:
    """What a connected TCP socket needs: small frames at once, and a dead host noticed."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 15_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _listen_unix(path: str) -> socket.socket:
    """Only this user may connect. A socket file that a dead worker left behind is replaced."""
    _clear_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(previous)
    listener.listen(BACKLOG)
    return listener


def _clear_stale_socket(path: str) -> None:
    if not os.path.exists(path):
        return
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise OSError(errno.EEXIST, "a file that is not a socket is in the way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "in use")
