"""What a stranger can do to the KV plane of a running worker: nothing, and it is counted."""

import random
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atomesh.kv_transfer.channel import GREETING_BYTES, MAGIC, NONCE_BYTES, Channel
from atomesh.kv_transfer.transport import PeerLost, PushFailed
from atomesh.kv_transfer.wire import Proof, Said
from atomesh.protocol.kv_handoff import Commit, Grant, Pull, Refuse, Renew, Reserve, Withdraw
from atomesh.protocol.ticket import Ticket, sign
from atomesh.protocol.worker import WorkerDescription
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.kv_impostor import Impostor, ask_who, connect, impostor
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.served_process import wait_for


@pytest.fixture
def decode(apart: PDBench) -> Iterator[WorkerDescription]:
    """A worker under attack; the same process serves hand-offs afterwards."""
    worker = apart.worker("decode")
    yield ask_who(worker["address"], apart.secret)
    assert apart.worker("decode")["pid"] == worker["pid"]
    apart.settle()
    assert apart.client.complete(fresh_prompt(100)).path == "prefill-decode"


def refusals(bench: PDBench) -> int:
    counts: dict[str, int] = bench.worker("decode")["load"]["kv_refusals"]
    return sum(counts.values())


def answer_to(worker: WorkerDescription, *payloads: bytes) -> bytes:
    """All that the worker says until it hangs up."""
    said = b""
    with connect(worker.kv_address or "") as sock:
        try:
            for payload in payloads:
                sock.sendall(payload)
            sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(65536):
                said += data
        except ConnectionError:
            pass
    return said


HOSTILE = {
    "another protocol": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "noise": random.Random(1).randbytes(5000),
    "a greeting and 4 GiB announced": MAGIC + bytes(NONCE_BYTES) + struct.pack("<I", 2**32 - 1) + bytes(100),
    "a greeting and an empty frame": MAGIC + bytes(NONCE_BYTES) + struct.pack("<I", 0) + bytes(16),
    "a greeting and noise": MAGIC + bytes(NONCE_BYTES) + random.Random(2).randbytes(5000),
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE.keys())
def test_noise_is_refused_and_counted(apart: PDBench, decode: WorkerDescription, payload: bytes) -> None:
    before = refusals(apart)
    said = answer_to(decode, payload)
    assert b"hello" not in said
    assert decode.incarnation.encode() not in said
    wait_for(lambda: refusals(apart) > before, 5.0)


def greeted(sock: socket.socket, secret: bytes) -> Channel:
    channel = Channel(secret, "caller", secrets.token_bytes(NONCE_BYTES))
    sock.sendall(channel.greeting)
    theirs = b""
    while len(theirs) < GREETING_BYTES:
        theirs += sock.recv(GREETING_BYTES - len(theirs))
    channel.feed(theirs)
    return channel


def test_a_wrong_secret_learns_nothing(apart: PDBench, decode: WorkerDescription) -> None:
    before = refusals(apart)
    with connect(decode.kv_address or "") as sock:
        channel = greeted(sock, b"x" * 32)
        sock.sendall(channel.encode(Proof()))
        said = b""
        try:
            while data := sock.recv(65536):
                said += data
        except ConnectionError:
            pass
    assert decode.incarnation.encode() not in said
    wait_for(lambda: refusals(apart) > before, 5.0)


def test_a_recorded_opening_opens_nothing(apart: PDBench, decode: WorkerDescription) -> None:
    with connect(decode.kv_address or "") as sock:
        channel = greeted(sock, apart.secret)
        proof = channel.encode(Proof())
        sock.sendall(proof)
        assert sock.recv(65536)
    before = refusals(apart)
    said = answer_to(decode, channel.greeting, proof)
    assert decode.incarnation.encode() not in said
    wait_for(lambda: refusals(apart) > before, 5.0)


def test_what_was_sealed_cannot_be_said_twice_or_changed(apart: PDBench, decode: WorkerDescription) -> None:
    frames = random.Random(3)
    for _ in range(40):
        with connect(decode.kv_address or "") as sock:
            channel = greeted(sock, apart.secret)
            good = channel.encode(Proof()) + channel.encode(Said(Renew(bytes(16))))
            mangled = bytearray(good + good[-40:])
            mangled[frames.randrange(len(good))] ^= 1 << frames.randrange(8)
            sock.sendall(mangled[: frames.randint(1, len(mangled))])
    for spoil in (lambda *sealed: sealed + sealed[-1:], lambda *sealed: (*sealed[:-1], flipped(sealed[-1]))):
        before = refusals(apart)
        with connect(decode.kv_address or "") as sock:
            channel = greeted(sock, apart.secret)
            sealed = (channel.encode(Proof()), channel.encode(Said(Renew(bytes(16)))))
            sock.sendall(b"".join(spoil(*sealed)))
            wait_for(lambda before=before: refusals(apart) > before, 5.0)


def flipped(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


def test_those_who_call_and_say_nothing_keep_nobody_out(apart: PDBench, decode: WorkerDescription) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connect(decode.kv_address or ""))
        assert apart.client.complete(fresh_prompt(100)).status == 200


@pytest.fixture
def member(
    apart: PDBench, decode: WorkerDescription, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Impostor]:
    with impostor(decode, apart.secret, tmp_path_factory.mktemp("i")) as made:
        yield made


def ticket(member: Impostor, worker: WorkerDescription, secret: bytes, **fields: Any) -> Ticket:
    genuine = Ticket(
        ticket_id=secrets.token_bytes(16),
        gateway="g" * 16,
        serial=random.randrange(1, 2**40),
        request_id="r",
        prefill=member.incarnation,
        decode=worker.incarnation,
        ttl_s=60.0,
    )
    return sign(secret, replace(genuine, **fields))


def reserve(ticket: Ticket) -> Reserve:
    return Reserve(ticket=ticket, block_hashes=[secrets.token_bytes(16)], num_tokens=40)


FORGED = {
    "signed with another secret": ({}, b"x" * 32),
    "for another decode worker": ({"decode": "somebody"}, None),
    "for another prefill worker": ({"prefill": "somebody"}, None),
    "with an id too short": ({"ticket_id": b"x"}, None),
    "expired from the start": ({"ttl_s": 0.0}, None),
    "with a negative time to live": ({"ttl_s": -1.0}, None),
    "good for ever": ({"ttl_s": float("inf")}, None),
    "without a number as time to live": ({"ttl_s": float("nan")}, None),
}


@pytest.mark.parametrize(("fields", "secret"), FORGED.values(), ids=FORGED.keys())
def test_a_forged_ticket_reserves_nothing(
    apart: PDBench, decode: WorkerDescription, member: Impostor, fields: dict[str, Any], secret: bytes | None
) -> None:
    before = refusals(apart)
    member.send(reserve(ticket(member, decode, secret or apart.secret, **fields)))
    answer = member.answer()
    assert isinstance(answer, Refuse)
    assert answer.reason == "ticket"
    wait_for(lambda: refusals(apart) > before, 5.0)
    assert apart.worker("decode")["load"]["reserved_blocks"] == 0


def test_a_changed_ticket_reserves_nothing(
    apart: PDBench, decode: WorkerDescription, member: Impostor
) -> None:
    good = ticket(member, decode, apart.secret)
    for fields in ({"serial": good.serial + 1}, {"request_id": "s"}, {"ttl_s": 61.0}, {"mac": b""}):
        member.send(reserve(replace(good, **fields)))
        assert isinstance(member.answer(), Refuse)


def test_a_ticket_is_good_once(apart: PDBench, decode: WorkerDescription, member: Impostor) -> None:
    good = ticket(member, decode, apart.secret)
    member.send(reserve(good))
    assert isinstance(member.answer(), Grant)
    member.send(reserve(good))
    assert isinstance(member.answer(), Refuse)
    member.send(Withdraw(good.ticket_id))
    member.send(reserve(good))
    assert isinstance(member.answer(), Refuse)


def test_a_reservation_larger_than_the_pool_is_refused(
    apart: PDBench, decode: WorkerDescription, member: Impostor
) -> None:
    for num_tokens in (-1, 0, 2**31, 2**62):
        good = ticket(member, decode, apart.secret)
        member.send(Reserve(ticket=good, block_hashes=[], num_tokens=num_tokens))
        assert isinstance(member.answer(), Refuse)


def test_nothing_is_written_under_a_grant_that_was_not_given(
    apart: PDBench, decode: WorkerDescription, member: Impostor
) -> None:
    before = refusals(apart)
    member.push(secrets.token_bytes(16), 4, 1)
    assert member.next_event(PushFailed).push_id == 1
    wait_for(lambda: refusals(apart) > before, 5.0)


def test_a_grant_covers_its_blocks_and_no_more(
    apart: PDBench, decode: WorkerDescription, member: Impostor
) -> None:
    member.send(reserve(ticket(member, decode, apart.secret)))
    grant = member.answer()
    assert isinstance(grant, Grant)
    assert grant.missing == [0, 1]
    member.push(grant.grant, 5, 1)
    assert member.next_event(PushFailed).push_id == 1


def test_a_commit_of_what_was_not_pushed_is_refused(
    apart: PDBench, decode: WorkerDescription, member: Impostor
) -> None:
    good = ticket(member, decode, apart.secret)
    member.send(reserve(good))
    grant = member.answer()
    assert isinstance(grant, Grant)
    member.send(Commit(good.ticket_id, grant.grant, 40, taken=True))
    answer = member.answer()
    assert isinstance(answer, Refuse)
    assert answer.reason == "coverage"


def test_messages_about_nothing_change_nothing(
    apart: PDBench, decode: WorkerDescription, member: Impostor
) -> None:
    unknown = secrets.token_bytes(16)
    for message in (
        Grant(unknown, unknown, [0]),
        Refuse(unknown, "full"),
        Commit(unknown, unknown, 10**9),
        Renew(unknown),
        Withdraw(unknown),
        Pull(ticket(member, decode, b"x" * 32), unknown, [0, -1, 2**40]),
    ):
        member.send(message)
    good = ticket(member, decode, apart.secret)
    member.send(reserve(good))
    answers = [member.answer()]
    while not isinstance(answers[-1], Grant):
        answers.append(member.answer())
    assert answers[-1].ticket_id == good.ticket_id
    assert all(isinstance(answer, Refuse) for answer in answers[:-1])


def test_another_layout_is_refused_with_its_field(
    apart: PDBench, decode: WorkerDescription, tmp_path: Path
) -> None:
    assert decode.kv_layout is not None
    other = replace(decode, kv_layout=replace(decode.kv_layout, dtype="float64"))
    with impostor(other, apart.secret, tmp_path) as member:
        member.send(Renew(bytes(16)))
        assert member.next_event(PeerLost)
    with impostor(
        replace(other, kv_layout=replace(decode.kv_layout, weights="others")), apart.secret, tmp_path
    ) as one:
        one.send(Renew(bytes(16)))
        assert "weights" in one.next_event(PeerLost).reason
