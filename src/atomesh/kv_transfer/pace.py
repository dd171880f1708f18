"""Whether bytes still get through, on a link so slow that nothing else shows it for seconds."""

import fcntl
import socket
import sys
import termios
from dataclasses import dataclass

from atomesh.kv_transfer.transport import LEAST_BYTES_S

TELL_S = 0.5


@dataclass(slots=True)
class Pace:
    """Of what comes: `num_bytes` since `since`, in seconds on the transport's clock."""

    since: float
    num_bytes: int = 0

    def is_steady(self, now: float) -> bool:
        """True once every TELL_S, if enough has come meanwhile."""
        seconds = now - self.since
        if seconds < TELL_S:
            return False
        was_enough = self.num_bytes > seconds * LEAST_BYTES_S
        self.since, self.num_bytes = now, 0
        return was_enough


def num_unsent(sock: socket.socket) -> int:
    """Bytes that the kernel has taken for the peer and still has, 0 where it does not say."""
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(answer, sys.byteorder, signed=True)
