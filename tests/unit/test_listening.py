"""Addresses that can be had, those that cannot, and what a failed or closed listener leaves behind."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from atomesh.errors import ConfigurationError
from atomesh.listening import bound_address, forget, listen
from atomesh.protocol.address import Address, TcpAddress, UnixAddress, parse_address

REMEDY = "choose another with --here"


@contextmanager
def listening(address: Address) -> Iterator[socket.socket]:
    with listen(address, REMEDY) as listener:
        yield listener
    forget(address)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_free_port_is_said_as_a_number_of_a_host_that_can_be_called() -> None:
    asked = parse_address("localhost:0")
    with listening(asked) as listener:
        bound = bound_address(listener, asked)
        assert isinstance(bound, TcpAddress)
        assert bound.host == "127.0.0.1"
        assert bound.port == listener.getsockname()[1] > 0
        with socket.create_connection((bound.host, bound.port)):
            pass


def test_a_listener_never_blocks(tmp_path: Path) -> None:
    for address in (TcpAddress("127.0.0.1", 0), UnixAddress(f"{tmp_path}/s")):
        with listening(address) as listener, pytest.raises(BlockingIOError):
            listener.accept()


def test_only_this_user_may_connect_and_the_umask_is_as_it_was(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with listening(UnixAddress(f"{tmp_path}/s")):
            assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
            (tmp_path / "other").touch()
            assert (tmp_path / "other").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_a_unix_address_is_bound_as_it_was_asked_for_and_forgotten(tmp_path: Path) -> None:
    asked = UnixAddress(f"{tmp_path}/s")
    with listening(asked) as listener:
        assert bound_address(listener, asked) is asked
    assert list(tmp_path.iterdir()) == []
    forget(asked)  # a second time


def test_what_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/s")
    with listening(UnixAddress(f"{tmp_path}/s")), socket.socket(socket.AF_UNIX) as caller:
        caller.connect(f"{tmp_path}/s")


def test_what_somebody_listens_on_is_left_to_him_even_with_a_full_queue(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(f"{tmp_path}/s")
        taken.listen(0)
        for _ in range(2):  # the first look fills the queue
            with pytest.raises(ConfigurationError, match=f"it is in use; {REMEDY}"):
                listen(UnixAddress(f"{tmp_path}/s"), REMEDY)
        taken.accept()[0].close()
        assert (tmp_path / "s").is_socket()


def a_taken_port(stack: ExitStack, _path: Path) -> Address:
    taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return TcpAddress("127.0.0.1", taken.getsockname()[1])


def a_file(_stack: ExitStack, path: Path) -> Address:
    (path / "s").write_text("kept")
    return UnixAddress(f"{path}/s")


def no_directory(_stack: ExitStack, path: Path) -> Address:
    return UnixAddress(f"{path}/missing/s")


def nobodys_host(_stack: ExitStack, _path: Path) -> Address:
    return TcpAddress("192.0.2.1", 0)  # TEST-NET-1, RFC 5737


def no_host_at_all(_stack: ExitStack, _path: Path) -> Address:
    return TcpAddress("ä..b", 0)


@pytest.mark.parametrize(
    ("cannot_be_had", "reason"),
    [
        (a_taken_port, "it is in use"),
        (a_file, "a file that is not a socket is in the way"),
        (no_directory, "No such file or directory"),
        (nobodys_host, "Cannot assign requested address"),
        (no_host_at_all, "its host has no valid name"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line_and_leaves_no_socket_open(
    cannot_be_had: Callable[[ExitStack, Path], Address], reason: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        address = cannot_be_had(stack, tmp_path)
        before = descriptors()
        with pytest.raises(ConfigurationError) as caught:
            listen(address, REMEDY)
        assert descriptors() == before
        assert caught.value.message == f"cannot listen on {address}: {reason}; {REMEDY}"
        assert not (tmp_path / "s").exists() or (tmp_path / "s").read_text() == "kept"
