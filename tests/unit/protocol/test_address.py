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


@pytest.mark.parametrize(
    "text",
    [
        "a..b:80",
        ".b:80",
        "x" * 64 + ".com:80",
        ".".join(["x" * 60] * 5) + ":80",
        "\x00:80",
        "a\x00b:80",
        " :80",
        "a b:80",
        "\u2603" * 70 + ":80",
        "\ud800:80",
        "host:" + "9" * 5000,
        "unix:/run/\x00",
        "unix:/run/\ud800",
    ],
)
def test_what_could_be_neither_looked_up_nor_opened_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_address(text)
    assert repr(text.removeprefix("unix:")[:60])[1:-1] in refused.value.message
    assert len(refused.value.message) < 1500


@pytest.mark.parametrize(
    "host", ["x" * 63 + ".com", "b\u00fccher.example", "host_1.local", "fe80::1%lo0", "a.b."]
)
def test_what_can_be_looked_up_is_taken(host: str) -> None:
    text = f"[{host}]:80" if ":" in host else f"{host}:80"
    assert parse_address(text) == TcpAddress(host, 80)
