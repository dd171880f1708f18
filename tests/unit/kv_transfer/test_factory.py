import socket
from pathlib import Path

import pytest

from atomesh.errors import ConfigurationError
from atomesh.kv_transfer.factory import make_transport
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.testing.transport_probe import kv_identity


def start(listen: str, pool: PoolMemory | None = None) -> str:
    pool = pool or PoolMemory(2, 64)
    transport = make_transport(listen, pool, kv_identity("d", block_bytes=64), lambda: None)
    address = transport.address
    transport.close()
    pool.close()
    return address


def test_a_transport_says_where_it_is_reached(tmp_path: Path) -> None:
    assert start(f"unix:{tmp_path}/kv") == f"unix:{tmp_path}/kv"
    host, _, port = start("localhost:0").partition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_a_closed_transport_leaves_no_socket_behind(tmp_path: Path) -> None:
    start(f"unix:{tmp_path}/kv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("listen", "complaint"),
    [
        ("unix:/nonexistent/kv", "cannot listen on unix:/nonexistent/kv"),
        ("0.0.0.0:0", "an address of this host"),
        ("[::]:0", "an address of this host"),
        ("nonsense", "write HOST:PORT or unix:PATH"),
    ],
)
def test_an_address_that_cannot_be_had_is_refused(listen: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        start(listen)


def test_an_address_in_use_is_refused_with_the_flag_to_change() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigurationError, match="it is in use; choose another with --kv-listen"),
    ):
        start(f"127.0.0.1:{taken.getsockname()[1]}")


def test_shared_memory_needs_a_pool_that_can_be_shared(tmp_path: Path) -> None:
    pool = PoolMemory(2, 64)
    pool.close()
    with pytest.raises(ConfigurationError, match="write --kv-listen HOST:PORT"):
        start(f"unix:{tmp_path}/kv", pool)


def test_the_pool_must_fit_the_layout() -> None:
    with pytest.raises(ConfigurationError, match="the pool's blocks have 32 bytes, the layout's 64"):
        start("127.0.0.1:0", PoolMemory(2, 32))
