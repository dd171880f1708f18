"""Listening sockets, with errors an operator can act on."""

import errno
import os
import socket
import stat
from pathlib import Path

from atomesh.errors import ConfigurationError
from atomesh.protocol.address import Address, TcpAddress, UnixAddress

BACKLOG = 1024


def listen(address: Address, remedy: str = "choose another with --listen") -> socket.socket:
    """A non-blocking listening socket. Raises ConfigurationError when the address cannot be had."""
    try:
        if isinstance(address, UnixAddress):
            return _listen_unix(address.path)
        return _listen_tcp(address.host, address.port)
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise ConfigurationError(f"cannot listen on {address}: {reason}; {remedy}") from error


def _listen_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener


def _listen_unix(path: str) -> socket.socket:
    """Only this user may connect. A socket file that a dead worker left behind is replaced."""
    _clear_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(previous)
    listener.listen(BACKLOG)
    listener.setblocking(False)
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


def bound_address(listener: socket.socket, asked: Address) -> Address:
    """Where `listener` really listens: the port is the kernel's choice when 0 was asked for."""
    if isinstance(asked, UnixAddress):
        return asked
    return TcpAddress(asked.host, listener.getsockname()[1])


def forget(address: Address) -> None:
    """Remove what a closed listener leaves in the file system."""
    if isinstance(address, UnixAddress):
        Path(address.path).unlink(missing_ok=True)
