"""Where a worker listens: `unix:PATH` on this host, or `HOST:PORT`."""

from dataclasses import dataclass

from atomesh.errors import ConfigurationError

MAX_UNIX_PATH_BYTES = 103  # sockaddr_un holds 108 on Linux, 104 on macOS, with a final zero


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
    """Raises ConfigurationError when `text` is neither form; an IPv6 host is written in brackets."""
    if text.startswith("unix:"):
        return _unix(text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigurationError(f"the address is {text!r}; write HOST:PORT or unix:PATH")
    return TcpAddress(host, int(port))


def _unix(path: str) -> UnixAddress:
    size = len(path.encode())
    if not 1 <= size <= MAX_UNIX_PATH_BYTES:
        raise ConfigurationError(
            f"the socket path has {size} bytes; it must have 1 to {MAX_UNIX_PATH_BYTES}: choose a shorter one"
        )
    return UnixAddress(path)
