"""A KV peer that says what a test has it say, well formed or not, over a plain blocking socket."""

import secrets
import socket

from atomesh.kv_transfer.channel import NONCE_BYTES, Channel
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.wire import Hello, Proof, WireMessage
from atomesh.protocol.address import UnixAddress, parse_address

TIMEOUT_S = 10.0


def call(address: str) -> socket.socket:
    parsed = parse_address(address)
    if isinstance(parsed, UnixAddress):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(parsed.path)
    else:
        sock = socket.create_connection((parsed.host, parsed.port))
    sock.settimeout(TIMEOUT_S)
    return sock


class RoguePeer:
    """Knows the secret of `identity`, and keeps to the protocol as far as its caller does."""

    def __init__(self, address: str, identity: KVIdentity) -> None:
        self.sock = call(address)
        self.channel = Channel(identity.secret, "caller", secrets.token_bytes(NONCE_BYTES))
        self._identity = identity
        self.sock.sendall(self.channel.greeting)
        while not self.channel.is_keyed:
            self._receive()

    def introduce(self, *fds: int) -> None:
        """Proof and hello, with `fds` beside the hello; returns once the other side has done as much."""
        self.say(Proof())
        self.hear()
        frame = self.channel.encode(Hello(self._identity.incarnation, self._identity.layout))
        socket.send_fds(self.sock, [frame], fds) if fds else self.sock.sendall(frame)
        self.hear()

    def say(self, message: WireMessage) -> None:
        self.sock.sendall(self.channel.encode(message))

    def hear(self) -> WireMessage | None:
        """The next message; None when the connection has ended."""
        while (message := self.channel.next_message()) is None:
            if not self._receive():
                return None
        return message

    def hears_the_end(self) -> bool:
        """Whether the other side has nothing more to say than goodbye. TimeoutError if it says nothing."""
        while (message := self.hear()) is not None:
            if not isinstance(message, Proof | Hello):
                return False
        return True

    def close(self) -> None:
        self.sock.close()

    def _receive(self) -> bool:
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            return False
        self.channel.feed(data)
        return bool(data)
