"""A gateway that a test speaks for: the token plane over a plain blocking socket."""

import secrets
import socket

from atomesh.protocol.frames import GatewayMessage, Hello, WorkerMessage, encode_message
from atomesh.protocol.sealed_channel import NONCE_BYTES
from atomesh.protocol.token_channel import gateway_channel
from atomesh.protocol.worker import WorkerDescription


class TokenPeer:
    """Greets and proves the secret by itself."""

    def __init__(self, sock: socket.socket, secret: bytes) -> None:
        self.channel = gateway_channel(secret, secrets.token_bytes(NONCE_BYTES))
        self._sock = sock
        self._heard: list[WorkerMessage] = []
        sock.sendall(self.channel.greeting)
        while not self.channel.is_keyed:
            self._receive()
        sock.sendall(self.channel.proof())

    def hello(self) -> WorkerDescription:
        """Raises ConnectionError when the worker has hung up instead."""
        message = self.hear()
        if not isinstance(message, Hello):
            raise TypeError(f"a {type(message).__name__} instead of a hello")
        return message.worker

    def say(self, message: GatewayMessage) -> None:
        self._sock.sendall(self.channel.seal(encode_message(message)))

    def hear(self) -> WorkerMessage:
        """The next message. Raises ConnectionError when none can come any more."""
        while not self._heard:
            self._receive()
        return self._heard.pop(0)

    def _receive(self) -> None:
        data = self._sock.recv(65536)
        if not data:
            raise ConnectionError("the worker has hung up")
        self._heard += self.channel.receive(data)
