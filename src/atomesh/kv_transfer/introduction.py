"""How a connection opens: each side proves that it knows the secret, then says who it is. Knows no socket."""

from atomesh.kv_transfer.channel import ChannelError
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.wire import Hello, Proof, WireMessage
from atomesh.protocol.kv_layout import difference


class LayoutError(Exception):
    """The two workers' KV differ, in the field that the message names."""


class Introduction:
    """Nothing about us is said before the peer has proved himself."""

    def __init__(self, identity: KVIdentity) -> None:
        self._identity = identity
        self.has_proved = False
        self.peer: Hello | None = None

    @property
    def peer_incarnation(self) -> str:
        """Empty before the hello."""
        return "" if self.peer is None else self.peer.incarnation

    def hear(self, message: WireMessage) -> Hello | None:
        """What to answer. Raises ChannelError out of turn, and LayoutError."""
        match message:
            case Proof() if not self.has_proved:
                self.has_proved = True
                return Hello(self._identity.incarnation, self._identity.layout)
            case Hello() if self.has_proved:
                field = difference(self._identity.layout, message.layout)
                if field is not None:
                    raise LayoutError(f"its KV cannot be used here: {field}")
                self.peer = message
                return None
            case _:
                raise ChannelError("message", f"a {type(message).__name__} before the hello")
