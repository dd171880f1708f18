import pytest

from atomesh.cli import kv_address
from atomesh.cli.kv_address import KVTransport, choose_kv_transport, kv_listen_address, local_kv_listen
from atomesh.errors import ConfigurationError
from atomesh.protocol.address import UnixAddress, parse_address
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


def test_a_parked_worker_may_do_without_as_a_unified_one() -> None:
    assert kv_listen_address(parse_address("127.0.0.1:8100"), "off", "parked") is None


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


@pytest.fixture(params=[True, False], ids=["shared", "not shared"])
def can_share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this system has memory that processes can share."""
    monkeypatch.setattr(kv_address, "can_share_memory", lambda: request.param)
    return bool(request.param)


def test_a_worker_by_itself_shares_memory_where_it_can(can_share: bool) -> None:
    expected = "unix:/run/w.sock.kv" if can_share else "127.0.0.1:0"
    assert kv_listen_address(parse_address("unix:/run/w.sock"), None, "decode") == expected


def test_auto_is_shared_memory_where_there_is_any(can_share: bool) -> None:
    assert choose_kv_transport("auto", can_hand_over=True) == ("shm" if can_share else "tcp")


def test_what_is_asked_for_by_name_is_had_or_refused(can_share: bool) -> None:
    assert choose_kv_transport("tcp", can_hand_over=True) == "tcp"
    if can_share:
        assert choose_kv_transport("shm", can_hand_over=True) == "shm"
        return
    with pytest.raises(ConfigurationError) as caught:
        choose_kv_transport("shm", can_hand_over=True)
    assert caught.value.message == (
        "--kv-transport is shm, and this system has no memory that processes can share, which takes Linux "
        "and its memfd_create; write --kv-transport tcp or auto"
    )


@pytest.mark.parametrize("asked", ["shm", "tcp"])
def test_where_kv_cannot_be_handed_over_no_way_can_be_chosen(asked: KVTransport) -> None:
    assert choose_kv_transport("auto", can_hand_over=False) == "off"
    with pytest.raises(ConfigurationError, match=f"--kv-transport is {asked}, .*; leave --kv-transport out"):
        choose_kv_transport(asked, can_hand_over=False)


def test_each_way_has_its_address() -> None:
    listen = UnixAddress("/tmp/atomesh-1/decode-0.sock")  # noqa: S108  no file is made
    assert local_kv_listen("shm", listen) == "unix:/tmp/atomesh-1/decode-0.sock.kv"
    assert local_kv_listen("tcp", listen) == "127.0.0.1:0"
    assert local_kv_listen("off", listen) == "off"
