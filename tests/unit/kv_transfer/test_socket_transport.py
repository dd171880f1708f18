"""Strangers and rogues: refused and counted, while the transport goes on serving those who behave."""

import gc
import os
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from atomesh.kv_transfer import socket_transport
from atomesh.kv_transfer.channel import GREETING_BYTES, Channel
from atomesh.kv_transfer.factory import make_transport
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.socket_transport import SocketTransport
from atomesh.kv_transfer.transport import BlockPush, Damaged, Fenced, Heard, PeerLost, Pushed, PushFailed
from atomesh.kv_transfer.wire import Done, Notice, Payload, Proof, Refused, Said, Stop
from atomesh.protocol.fault_points import FaultPoints
from atomesh.protocol.kv_handoff import Grant, Renew
from atomesh.testing.rogue_peer import RoguePeer, call
from atomesh.testing.transport_probe import TransportProbe, kv_identity

BLOCK_BYTES = 4096
GRANT = b"g" * 16
TICKET = b"t" * 16
US = kv_identity("d", block_bytes=BLOCK_BYTES)
THEM = kv_identity("p", block_bytes=BLOCK_BYTES)


def listen(address: str, identity: KVIdentity, faults: FaultPoints | None = None) -> TransportProbe:
    def make(pool: PoolMemory, on_event: Callable[[], None]) -> SocketTransport:
        return make_transport(address, pool, identity, on_event, faults)

    return TransportProbe(PoolMemory(4, BLOCK_BYTES), make, mark=100)


@pytest.fixture(params=["shm", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/d" if request.param == "shm" else "127.0.0.1:0"


@pytest.fixture
def probe(address: str) -> Iterator[TransportProbe]:
    probe = listen(address, US)
    yield probe
    assert_serves(probe)
    probe.close()


@pytest.fixture
def shm_probe(tmp_path: Path) -> Iterator[TransportProbe]:
    probe = listen(f"unix:{tmp_path}/d", US)
    yield probe
    assert_serves(probe)
    probe.close()


@pytest.fixture
def tcp_probe() -> Iterator[TransportProbe]:
    probe = listen("127.0.0.1:0", US)
    yield probe
    assert_serves(probe)
    probe.close()


def assert_serves(probe: TransportProbe) -> None:
    """A peer that behaves can call, push, and is answered."""
    is_unix = probe.address.startswith("unix:")
    friend = listen(f"{probe.address}.friend" if is_unix else "127.0.0.1:0", THEM)
    friend.transport.send(probe.address, Renew(b"friendly ticket!"))
    caller = next(
        event.peer
        for event in iter(lambda: probe.wait(Heard), None)
        if event.message == Renew(b"friendly ticket!")
    )
    probe.transport.admit(caller, b"friendly grant!!", {0: 3})
    probe.transport.send(caller, Grant(TICKET, b"friendly grant!!", [0]))
    friend.wait(Heard)
    friend.transport.push(probe.address, b"friendly grant!!", [BlockPush(0, 1)], 1, 20.0)
    assert friend.wait(Pushed) == Pushed(1)
    assert probe.values()[3] == 101
    friend.close()


def rogue(probe: TransportProbe, pool: PoolMemory | None = None) -> RoguePeer:
    """One that has said hello as it should."""
    peer = RoguePeer(probe.address, THEM)
    fds = () if pool is None or pool.fd is None else (pool.fd,)
    peer.introduce(*fds)
    return peer


def refused(probe: TransportProbe) -> dict[str, int]:
    return {name: count for name, count in probe.transport.refusals.items() if count}


def test_garbage_is_cut_off(probe: TransportProbe) -> None:
    with call(probe.address) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: kv\r\n\r\n")
        with suppress(ConnectionResetError):
            assert len(sock.recv(1000)) in (0, 44)
            assert sock.recv(1000) == b""
    assert refused(probe) == {"greeting": 1}
    assert probe.unread() == []


def test_a_wrong_secret_is_told_nothing(probe: TransportProbe) -> None:
    peer = RoguePeer(probe.address, kv_identity("p", block_bytes=BLOCK_BYTES, secret=b"guess"))
    peer.sock.sendall(peer.channel.encode(Proof()))
    heard = b""
    with suppress(ConnectionResetError):
        while data := peer.sock.recv(65536):
            heard += data
    peer.close()
    assert US.layout.model.encode() not in heard
    assert refused(probe) == {"secret": 1}
    assert probe.unread() == []


def test_a_refusal_is_news_though_there_is_nothing_to_poll(address: str) -> None:
    news = threading.Event()
    pool = PoolMemory(4, BLOCK_BYTES)
    transport = make_transport(address, pool, US, news.set)
    with call(transport.address) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert news.wait(10)
    assert transport.poll() == []
    assert transport.refusals["greeting"] == 1
    transport.close()
    pool.close()


def test_a_recorded_opening_is_refused(probe: TransportProbe) -> None:
    peer = RoguePeer(probe.address, THEM)
    recorded = peer.channel.greeting + peer.channel.encode(Proof())
    peer.close()
    with call(probe.address) as sock:
        sock.sendall(recorded)
        with suppress(ConnectionResetError):
            while sock.recv(65536):
                pass
    assert refused(probe) == {"secret": 1}


def test_one_who_says_nothing_is_cut_off(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_transport, "HELLO_DEADLINE_S", 0.05)
    probe = listen(address, US)
    with call(probe.address) as sock:
        while sock.recv(1000):
            pass
    assert refused(probe) == {"timeout": 1}
    monkeypatch.setattr(socket_transport, "HELLO_DEADLINE_S", 5.0)
    assert_serves(probe)
    probe.close()


def test_of_too_many_strangers_the_oldest_goes(
    probe: TransportProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_transport, "MAX_STRANGERS", 3)
    friend = rogue(probe, PoolMemory(1, BLOCK_BYTES))
    strangers = [call(probe.address) for _ in range(5)]
    for sock in strangers[:2]:
        assert len(sock.recv(1000)) in (0, GREETING_BYTES)
        assert sock.recv(1000) == b""
    assert refused(probe) == {"crowd": 2}
    for sock in strangers[2:]:
        assert len(sock.recv(1000)) == GREETING_BYTES
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1000)
    friend.say(Said(Renew(TICKET)))
    assert probe.wait(Heard).message == Renew(TICKET)
    for peer in (*strangers, friend):
        peer.close()
    assert isinstance(probe.wait(PeerLost), PeerLost)


def test_who_speaks_at_once_gets_past_those_who_never_do(
    probe: TransportProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_transport, "MAX_STRANGERS", 16)
    strangers = [call(probe.address) for _ in range(64)]
    assert_serves(probe)
    assert refused(probe)["crowd"] >= 48
    for sock in strangers:
        sock.close()


def test_refusals_are_logged_seldom(tcp_probe: TransportProbe, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(50):
        with call(tcp_probe.address) as sock, suppress(ConnectionResetError):
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while sock.recv(1000):
                pass
    assert refused(tcp_probe) == {"greeting": 50}
    assert 1 <= sum("refused on the KV plane" in line for line in caplog.messages) < 25


def test_a_frame_too_long_ends_the_connection(tcp_probe: TransportProbe) -> None:
    peer = rogue(tcp_probe)
    peer.sock.sendall(b"\xff\xff\xff\xff")
    assert peer.hears_the_end()
    peer.close()
    assert refused(tcp_probe) == {"size": 1}
    assert tcp_probe.wait(PeerLost).reason.startswith("a frame announces 4294967295 bytes")


def test_a_replayed_frame_ends_the_connection(tcp_probe: TransportProbe) -> None:
    peer = rogue(tcp_probe)
    frame = peer.channel.encode(Said(Renew(TICKET)))
    peer.sock.sendall(frame + frame)
    assert peer.hears_the_end()
    peer.close()
    assert refused(tcp_probe) == {"mac": 1}
    assert tcp_probe.wait(Heard).message == Renew(TICKET)
    assert isinstance(tcp_probe.wait(PeerLost), PeerLost)
    assert tcp_probe.unread() == []


def test_a_truncated_frame_leaves_nothing_behind(tcp_probe: TransportProbe) -> None:
    peer = rogue(tcp_probe)
    peer.sock.sendall(peer.channel.encode(Said(Renew(TICKET)))[:-1])
    peer.close()
    assert tcp_probe.wait(PeerLost).reason == "the peer has closed the connection"
    assert tcp_probe.unread() == []


def test_random_bytes_at_any_stage_harm_nobody(probe: TransportProbe) -> None:
    dice = random.Random(7)
    for _ in range(40):
        noise = dice.randbytes(dice.randrange(1, 300))
        with call(probe.address) as sock, suppress(BrokenPipeError, ConnectionResetError):
            if dice.random() < 0.5:
                sock.sendall(Channel(b"?", "caller", dice.randbytes(32)).greeting)
            sock.sendall(noise)
    assert probe.unread() == []


def test_random_bytes_of_a_peer_end_its_connection(tcp_probe: TransportProbe) -> None:
    dice = random.Random(8)
    for _ in range(20):
        peer = rogue(tcp_probe)
        with suppress(ConnectionResetError, BrokenPipeError):
            peer.sock.sendall(dice.randbytes(3) + b"\0" + dice.randbytes(5_000_000))
        assert peer.hears_the_end()
        peer.close()
        tcp_probe.wait(PeerLost)
    assert sum(refused(tcp_probe).values()) == 20


def test_a_hello_without_a_pool_is_refused(shm_probe: TransportProbe) -> None:
    peer = rogue(shm_probe)
    assert peer.hears_the_end()
    peer.close()
    assert refused(shm_probe) == {"memory": 1}
    assert shm_probe.unread() == []


@pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")
@pytest.mark.parametrize("kind", ["file", "unsealed", "empty", "uneven", "pipe"])
def test_what_is_no_sealed_pool_is_not_mapped(shm_probe: TransportProbe, kind: str, tmp_path: Path) -> None:
    fd = strange_descriptor(kind, tmp_path)
    peer = RoguePeer(shm_probe.address, THEM)
    peer.introduce(fd)
    assert peer.hears_the_end()
    peer.close()
    os.close(fd)
    assert refused(shm_probe) == {"memory": 1}


def strange_descriptor(kind: str, directory: Path) -> int:
    if kind == "file":
        (directory / "pool").write_bytes(bytes(BLOCK_BYTES))
        return os.open(directory / "pool", os.O_RDONLY)
    if kind == "pipe":
        read, write = os.pipe()
        os.close(write)
        return read
    if kind == "unsealed":
        fd = os.memfd_create("pool", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, BLOCK_BYTES)
        return fd
    pool = PoolMemory(1, {"uneven": BLOCK_BYTES + 1, "empty": 1}[kind])
    fd = os.dup(pool.fd or 0)
    pool.close()
    return fd


def test_descriptors_are_not_hoarded(shm_probe: TransportProbe) -> None:
    before = open_descriptors()
    pool = PoolMemory(1, BLOCK_BYTES)
    for _ in range(5):
        peer = RoguePeer(shm_probe.address, THEM)
        for _ in range(3):
            with suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(peer.sock, [b"\0"], [pool.fd or 0])
        assert peer.hears_the_end()
        peer.close()
    pool.close()
    shm_probe.transport.cancel(GRANT)
    shm_probe.wait(Fenced)
    del pool
    assert open_descriptors() == before


def open_descriptors() -> int:
    gc.collect()  # a map holds a descriptor of its own
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


def test_a_block_outside_the_rogues_pool_is_never_read(shm_probe: TransportProbe) -> None:
    pool = PoolMemory(2, BLOCK_BYTES)
    peer = rogue(shm_probe, pool)
    peer.say(Said(Renew(TICKET)))
    caller = shm_probe.wait(Heard).peer
    shm_probe.transport.admit(caller, GRANT, {0: 0})
    shm_probe.transport.send(caller, Grant(TICKET, GRANT, [0]))
    assert peer.hear() == Said(Grant(TICKET, GRANT, [0]))
    peer.say(Notice(5, GRANT, [0], [2]))

    assert shm_probe.wait(Damaged).grant == GRANT
    assert peer.hear() == Refused(5, "blocks are missing, or not in the sender's pool")
    assert refused(shm_probe) == {"block": 1}
    peer.close()
    pool.close()


def test_a_push_nobody_granted_is_refused_and_the_peer_kept(tcp_probe: TransportProbe) -> None:
    peer = rogue(tcp_probe)
    peer.say(Payload(5, GRANT, [0]))
    peer.sock.sendall(b"x" * BLOCK_BYTES)
    assert peer.hear() == Refused(5, "the grant is not known, or no longer")
    assert refused(tcp_probe) == {"grant": 1}
    peer.close()
    tcp_probe.wait(PeerLost)


class FrozenPeer:
    """Listens and says hello, then nothing more, as a process that has been stopped."""

    def __init__(self) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.sock.getsockname()[1]}"
        self.peer: socket.socket | None = None
        self._thread = threading.Thread(target=self._greet)
        self._thread.start()

    def _greet(self) -> None:
        self.peer, _ = self.sock.accept()

    def close(self) -> None:
        self._thread.join()
        self.sock.close()
        if self.peer is not None:
            self.peer.close()


def test_a_push_to_one_that_does_not_answer_ends_at_its_deadline(tcp_probe: TransportProbe) -> None:
    frozen = FrozenPeer()
    begin = monotonic()
    tcp_probe.transport.push(frozen.address, GRANT, [BlockPush(0, 0)], 1, 0.1)
    assert tcp_probe.wait(PushFailed) == PushFailed(1, "the deadline has passed")
    assert 0.1 <= monotonic() - begin < 3.0
    frozen.close()


def test_a_notice_that_is_not_answered_is_taken_back(shm_probe: TransportProbe) -> None:
    pool = PoolMemory(1, BLOCK_BYTES)
    peer = rogue(shm_probe, pool)
    peer.say(Said(Renew(TICKET)))
    caller = shm_probe.wait(Heard).peer
    shm_probe.transport.push(caller, GRANT, [BlockPush(0, 3)], 6, 0.05)

    assert shm_probe.wait(PushFailed) == PushFailed(6, "the deadline has passed")
    assert peer.hear() == Notice(6, GRANT, [0], [3])
    assert peer.hear() == Stop(6)
    peer.say(Done(6))
    peer.close()
    shm_probe.wait(PeerLost)
    pool.close()
    assert shm_probe.unread() == []


def test_a_delayed_push_arrives_later(address: str) -> None:
    faults = FaultPoints()
    sender = listen(address.replace("/d", "/p"), THEM, faults)
    probe = listen(address, US)
    sender.transport.send(probe.address, Renew(TICKET))
    caller = probe.wait(Heard).peer
    probe.transport.admit(caller, GRANT, {0: 0, 1: 1})
    probe.transport.send(caller, Grant(TICKET, GRANT, [0, 1]))
    sender.wait(Heard)
    faults.arm("kv_delay_push", 1, 0.1)
    begin = monotonic()
    sender.transport.push(probe.address, GRANT, [BlockPush(0, 0)], 1, 20.0)
    sender.transport.push(probe.address, GRANT, [BlockPush(1, 1)], 2, 20.0)
    assert [sender.wait(Pushed).push_id for _ in range(2)] == [2, 1]
    assert monotonic() - begin >= 0.1
    sender.close()
    probe.close()


def test_who_does_not_poll_is_not_buried_in_news(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_transport, "MAX_EVENTS", 3)
    probe, sender = listen(address, US), listen(address.replace("/d", "/p"), THEM)
    said = [Renew(bytes([number]) * 16) for number in range(200)]
    for message in said:
        sender.transport.send(probe.address, message)
    assert [probe.wait(Heard).message for _ in said] == said
    sender.close()
    probe.close()


def test_a_failure_of_the_thread_ends_what_was_under_way_and_no_more(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([RuntimeError("a bug")])

    def make(pool: PoolMemory, on_event: Callable[[], None]) -> SocketTransport:
        def fail_once() -> None:
            on_event()
            for failure in failures:
                raise failure

        return make_transport(address, pool, US, fail_once)

    probe = TransportProbe(PoolMemory(4, BLOCK_BYTES), make, mark=100)
    sender = listen(address.replace("/d", "/p"), THEM)
    sender.transport.send(probe.address, Renew(TICKET))
    assert sender.wait(PeerLost).peer == probe.address
    assert probe.wait(PeerLost).reason == "an internal error"
    assert "begins anew" in caplog.text
    sender.close()
    probe.unread().clear()
    assert_serves(probe)
    probe.close()


def test_threads_end_with_their_transport(address: str) -> None:
    before = threading.active_count()
    probe = listen(address, US)
    assert threading.active_count() == before + 1
    probe.close()
    assert threading.active_count() == before


def test_a_bug_on_one_connection_leaves_the_others(
    probe: TransportProbe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    probe.transport.push(probe.address, GRANT, [BlockPush(0, 99)], 1, 20.0)
    if probe.address.startswith("unix:"):
        assert isinstance(probe.wait(PushFailed), PushFailed)
    else:
        assert probe.wait(PeerLost).reason == "an internal error"
        assert "has failed" in caplog.text
