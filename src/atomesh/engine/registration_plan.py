"""What a worker is told about registering: with which gateways, and under which address they reach it."""

from dataclasses import dataclass

from atomesh.engine.registrar import HttpDoor, Registrar
from atomesh.engine.token_plane import Identity
from atomesh.errors import ConfigurationError
from atomesh.protocol.address import TcpAddress, parse_address

EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  what is looked for, not bound


@dataclass(frozen=True, slots=True)
class RegistrationPlan:
    """`advertise` None: where the worker listens."""

    gateways: tuple[str, ...] = ()
    advertise: str | None = None

    def check(self, listen: str) -> None:
        """Raises ConfigurationError for a gateway that is no URL, or an address that nobody could reach."""
        for url in self.gateways:
            if not url.startswith(("http://", "https://")):
                raise ConfigurationError(f"--gateway is {url!r}; write http://HOST:PORT or https://HOST:PORT")
        if not self.gateways:
            return
        address = parse_address(self.advertise or listen)
        if isinstance(address, TcpAddress) and address.host in EVERYWHERE:
            raise ConfigurationError(
                f"gateways cannot reach {address}; name the address of this machine with --advertise"
            )

    def registrar(self, identity: Identity, bound: str) -> Registrar:
        """`bound` is where the worker listens, with its real port."""
        doors = [HttpDoor(url) for url in self.gateways]
        return Registrar(doors, identity.secret, self.advertise or bound, identity.worker.incarnation)
