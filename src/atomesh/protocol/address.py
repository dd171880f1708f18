"""Where a worker listens: `unix:PATH` on this host, or `HOST:PORT`."""

from dataclasses import dataclass

from atomesh.errors import ConfigurationError

MAX_UNIX_PATH_BYTES = 103  # sockaddr_un holds 108 on Linux, 104 on macOS, with a final zero
MAX_NAME_BYTES = 253
MAX_SHOWN = 200
MAX_PORT_DIGITS = 5


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """Raises ConfigurationError when `text` is neither form; an IPv6 host is written in brackets.

    What it gives can be looked up and connected to, though there may be nobody.
    """
    if text.startswith("unix:"):
        return _unix(text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not _is_port(port):
        raise ConfigurationError(f"the address is {_shown(text)}; write HOST:PORT or unix:PATH")
    if not _can_be_looked_up(host):
        raise ConfigurationError(
            f"the host of the address {_shown(text)} is no name: each of its labels must have 1 to 63 "
            f"characters, all of it {MAX_NAME_BYTES} at most, and no space or control character"
        )
    return TcpAddress(host, int(port))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_PORT_DIGITS and int(text) < 2**16


def _can_be_looked_up(host: str) -> bool:
    """As getaddrinfo encodes it, which raises for what is no name."""
    try:
        encoded = host.encode("idna")
    except UnicodeError:
        return False
    return len(encoded) <= MAX_NAME_BYTES and all(0x20 < byte < 0x7F for byte in encoded)


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…")


def _unix(path: str) -> UnixAddress:
    try:
        size = len(path.encode())
    except UnicodeError:
        raise ConfigurationError(f"the socket path {_shown(path)} is not Unicode; choose another") from None
    if "\0" in path:
        raise ConfigurationError(f"the socket path {_shown(path)} has a zero in it; choose another")
    if not 1 <= size <= MAX_UNIX_PATH_BYTES:
        raise ConfigurationError(
            f"the socket path has {size} bytes; it must have 1 to {MAX_UNIX_PATH_BYTES}: choose a shorter one"
        )
    return UnixAddress(path)
