"""Listening sockets, of whichever plane, with errors an operator can act on."""

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from atomesh.errors import ConfigurationError
from atomesh.protocol.address import Address, TcpAddress, UnixAddress

BACKLOG = 1024


def listen(address: Address, remedy: str) -> socket.socket:
    """A non-blocking listening socket.

    Raises ConfigurationError, which says why and ends with `remedy`, when the address cannot be had.
    """
    try:
        listener = _listen(address)
    except (OSError, UnicodeError) as error:  # a host that IDNA cannot encode is a UnicodeError
        raise ConfigurationError(f"cannot listen on {address}: {_reason(error)}; {remedy}") from error
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


def _listen(address: Address) -> socket.socket:
    if isinstance(address, UnixAddress):
        return _listen_unix(address.path)
    address.host.encode("idna")  # create_server would leak its socket over this UnicodeError
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)


def _listen_unix(path: str) -> socket.socket:
    """Only this user may connect. A socket file that a dead process left behind is replaced."""
    _clear_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(previous)
    return listener


def _clear_stale_socket(path: str) -> None:
    if not os.path.exists(path):
        return
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise OSError(errno.EEXIST, "a file that is not a socket is in the way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            with suppress(BlockingIOError):  # its queue is full, so somebody has it
                probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "in use")


def _reason(error: OSError | UnicodeError) -> str:
    if not isinstance(error, OSError):
        return "its host has no valid name"
    if error.errno == errno.EADDRINUSE:
        return "it is in use"
    return str(error.strerror or error).partition(" (while attempting to bind")[0]  # create_server's words


def settle(sock: socket.socket) -> None:
    """What a connected socket needs over TCP: small frames at once, and a host that vanished noticed."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 10_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
