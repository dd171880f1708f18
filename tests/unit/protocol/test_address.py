import pytest

from atomesh.errors import ConfigurationError
from atomesh.protocol.address import TcpAddress, UnixAddress, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unix:/run/w.sock", UnixAddress("/run/w.sock")),
        ("127.0.0.1:8100", TcpAddress("127.0.0.1", 8100)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("[::1]:65535", TcpAddress("::1", 65535)),
    ],
)
def test_both_forms_are_read_and_written_alike(text: str, expected: object) -> None:
    assert parse_address(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", ":80", "host:", "host:-1", "host:65536", "host:8x", "host:²", "unix:", "unix:" + "x" * 104],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_address(text)
