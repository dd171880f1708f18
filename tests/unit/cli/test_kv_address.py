import pytest

from atomesh.cli.kv_address import kv_listen_address
from atomesh.errors import ConfigurationError
from atomesh.protocol.address import parse_address
from atomesh.protocol.worker import Role


@pytest.mark.parametrize(
    ("listen", "asked", "expected"),
    [
        ("127.0.0.1:8100", None, "127.0.0.1:0"),
        ("[::1]:8100", None, "[::1]:0"),
        ("unix:/run/w.sock", None, "unix:/run/w.sock.kv"),
        ("0.0.0.0:8100", "10.0.0.7:9000", "10.0.0.7:9000"),
        ("unix:/run/w.sock", "unix:/run/kv", "unix:/run/kv"),
        ("127.0.0.1:8100", "off", None),
        ("0.0.0.0:8100", None, None),
        (f"unix:/{'x' * 101}", None, None),
    ],
)
def test_where_kv_is_handed_over(listen: str, asked: str | None, expected: str | None) -> None:
    assert kv_listen_address(parse_address(listen), asked, "unified") == expected


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(("listen", "asked"), [("0.0.0.0:8100", None), ("127.0.0.1:8100", "off")])
def test_a_role_that_lives_on_handing_over_needs_an_address(
    listen: str, asked: str | None, role: Role
) -> None:
    with pytest.raises(ConfigurationError, match=f"a {role} worker .* name one with --kv-listen"):
        kv_listen_address(parse_address(listen), asked, role)


@pytest.mark.parametrize("asked", ["0.0.0.0:9000", "[::]:9000"])
def test_a_wildcard_cannot_be_connected_to(asked: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot connect to that"):
        kv_listen_address(parse_address("127.0.0.1:8100"), asked, "unified")


def test_where_memory_cannot_be_shared_it_goes_over_a_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert kv_listen_address(parse_address("unix:/run/w.sock"), None, "decode") == "127.0.0.1:0"
