import errno
import fcntl
import mmap
import os
import sys

import pytest

from atomesh.kv_transfer.pool_memory import PoolMemory, can_share_memory

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")


def test_blocks_lie_one_after_the_other() -> None:
    pool = PoolMemory(4, 1000)
    pool.block(2)[:] = b"x" * 1000
    assert bytes(pool.view) == bytes(2000) + b"x" * 1000 + bytes(1000)
    assert pool.block_address(3) == pool.address + 3000
    pool.close()


@pytest.mark.parametrize("number", [-1, 4])
def test_there_are_no_other_blocks(number: int) -> None:
    pool = PoolMemory(4, 1000)
    with pytest.raises(IndexError, match=r"0 … 3"):
        pool.block(number)
    pool.close()


@linux_only
def test_peers_may_map_it_to_read_but_not_to_write_or_resize() -> None:
    pool = PoolMemory(4, 1000)
    pool.block(1)[:] = b"y" * 1000
    assert pool.fd is not None
    fd = os.dup(pool.fd)
    with mmap.mmap(fd, 4000, mmap.MAP_SHARED, mmap.PROT_READ) as theirs:
        assert theirs[1000:2000] == b"y" * 1000
        pool.block(1)[0] = 0
        assert theirs[1000] == 0
    for trespass in (
        lambda: mmap.mmap(fd, 4000),
        lambda: os.write(fd, b"z"),
        lambda: os.ftruncate(fd, 0),
        lambda: os.ftruncate(fd, 10_000),
        lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0x20),
    ):
        with pytest.raises(PermissionError):
            trespass()
    os.close(fd)
    pool.close()


@linux_only
def test_closing_gives_the_file_up_and_keeps_the_bytes() -> None:
    pool = PoolMemory(4, 1000)
    fd = pool.fd
    assert fd is not None
    pool.close()
    pool.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(fd)
    pool.block(0)[:] = b"z" * 1000
    assert pool.view[999] == ord("z")


def test_without_memfds_it_is_plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    pool = PoolMemory(4, 1000)
    assert pool.fd is None
    pool.block(3)[:] = b"x" * 1000
    assert bytes(pool.view[2999:3001]) == b"\0x"
    pool.close()


@linux_only
def test_a_sandbox_may_forbid_memfds(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> int:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    assert PoolMemory(4, 1000).fd is None
    assert not can_share_memory()


def test_whether_memory_can_be_shared_is_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_share_memory() is (sys.platform == "linux")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not can_share_memory()
