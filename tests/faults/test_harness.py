"""That 'after every test' can fail: each thing that must not be left is left on purpose, and is found."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from atomesh.protocol.kv_handoff import Grant, Reserve, Withdraw
from atomesh.protocol.ticket import Ticket, sign
from atomesh.testing.afterwards import Watch
from atomesh.testing.completion_client import Client, Outcome
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.kv_impostor import ask_who, impostor
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.puppet_mesh import SECRET, puppet_mesh, run
from atomesh.testing.puppet_worker import PuppetWorker

SOON_S = 0.2


def findings(bench: PDBench, timeout_s: float = SOON_S) -> str:
    with pytest.raises(AssertionError, match="after the test") as found:
        bench.check(timeout_s)
    return str(found.value)


def test_a_request_that_still_runs_is_found(apart: PDBench) -> None:
    stream = apart.client.stream(fresh_prompt(40), n=8, temperature=1.0, max_tokens=900, ignore_eos=True)
    assert len(stream.next_tokens()) >= 1
    found = findings(apart)
    assert "1 streams were neither read to their end nor left" in found
    assert "vllm:num_requests_running is 8" in found
    assert "atomesh_requests_in_flight is 1" in found
    assert "decode-0 is busy" in found
    assert "decode-0 has blocks {'held'" in found
    assert "atomesh_tickets_open is 1" in found
    assert "1 tickets are open" in found
    stream.close()
    apart.check()


def test_a_grant_that_nobody_gives_back_is_found(apart: PDBench, tmp_path: Path) -> None:
    decode = ask_who(apart.worker("decode")["address"], apart.secret)
    with impostor(decode, apart.secret, tmp_path) as member:
        ticket = Ticket(
            ticket_id=b"h" * 16,
            gateway="g" * 16,
            serial=1,
            request_id="r",
            prefill=member.incarnation,
            decode=decode.incarnation,
            ttl_s=60.0,
        )
        member.send(Reserve(ticket=sign(apart.secret, ticket), block_hashes=[b"b" * 16], num_tokens=40))
        assert isinstance(member.answer(), Grant)
        assert "decode-0 has blocks {'reserved': 2}" in findings(apart)
        member.send(Withdraw(ticket.ticket_id))
        apart.check()


def test_a_worker_that_dies_by_itself_is_found_though_another_has_its_place(apart: PDBench) -> None:
    os.kill(apart.worker("decode")["pid"], signal.SIGKILL)
    assert "worker decode-0 was to be ended" not in (found := findings(apart, 60.0))
    assert "worker decode-0 has died" in found
    apart.check()


def test_so_is_the_gateway(apart: PDBench) -> None:
    os.kill(apart.gateway_pid(), signal.SIGKILL)
    assert "the gateway has died" in findings(apart, 60.0)
    apart.check()


def test_a_test_that_says_it_kills_and_does_not_is_found(apart: PDBench) -> None:
    apart.excuse("decode-0", "gateway")
    found = findings(apart)
    assert "worker decode-0 was to be ended, and lives" in found
    assert "the gateway was to be ended, and lives" in found


@dataclass
class FakeServer:
    """As a server that has come to rest, but for what is set."""

    client: Any
    gauges: dict[str, float] = field(default_factory=dict)
    worker: dict[str, Any] = field(default_factory=dict)
    blocks: dict[str, Any] = field(default_factory=dict)
    open_tickets: int = 0

    def workers(self) -> list[dict[str, Any]]:
        at_rest = {"id": "w", "incarnation": "1", "state": "ready", "in_flight": 0}
        return [{**at_rest, "load": {"running": 0, "waiting": 0}, **self.worker}]

    def kv(self) -> dict[str, Any]:
        at_rest = {"id": "w", "total": 4, "states": {"free": 3, "cached": 1, "held": 0}, "owners": {}}
        return {"workers": [{**at_rest, **self.blocks}], "open_tickets": self.open_tickets}

    def metric(self, name: str, **_labels: str) -> float:
        return self.gauges.get(name, 0.0)


class PlainClient:
    def __init__(self, status: int = 200) -> None:
        self.improper: list[str] = []
        self.open_streams: set[object] = set()
        self.status = status

    def complete(self, _prompt: list[int]) -> Outcome:
        return Outcome(self.status)


LEFT: dict[str, tuple[dict[str, Any], str]] = {
    "a running request": (
        {"gauges": {"vllm:num_requests_running": 1.0}},
        "vllm:num_requests_running is 1",
    ),
    "a waiting request": (
        {"gauges": {"vllm:num_requests_waiting": 2.0}},
        "vllm:num_requests_waiting is 2",
    ),
    "a request in flight": (
        {"gauges": {"atomesh_requests_in_flight": 1.0}},
        "atomesh_requests_in_flight is 1",
    ),
    "a ticket": ({"open_tickets": 3}, "3 tickets are open"),
    "a leg": (
        {"worker": {"in_flight": 1}},
        "w is busy: {'in_flight': 1, 'running': 0, 'waiting': 0}",
    ),
    "a worker that drains": ({"worker": {"state": "draining"}}, "w is draining"),
    "a held block": (
        {"blocks": {"states": {"free": 3, "held": 1}, "owners": {"request 7": 1}}},
        "w has blocks {'held': 1} of {'request 7': 1}",
    ),
    "a quarantined block": (
        {"blocks": {"states": {"free": 3, "quarantined": 1}}},
        "w has blocks {'quarantined': 1} of {}",
    ),
    "an owner": ({"blocks": {"owners": {"offer 1": 0}}}, "w has blocks {} of {'offer 1': 0}"),
    "a block too few": (
        {"blocks": {"states": {"free": 3}}},
        "w has lost count: {'free': 3} of 4",
    ),
    "silence": ({"blocks": {"total": None}}, "w does not say who owns its blocks"),
    "no plain answer": ({"client": PlainClient(503)}, "a plain request is answered with 503"),
}


@pytest.mark.parametrize(("left", "words"), LEFT.values(), ids=LEFT.keys())
def test_whatever_is_left_is_found(left: dict[str, Any], words: str) -> None:
    server = FakeServer(**{"client": PlainClient(), **left})
    assert words in Watch.begin(server, None).findings(0.0)


def test_nothing_is_found_where_nothing_is_left(tmp_path: Path) -> None:
    (log := tmp_path / "log").write_text("all is well\n")
    assert Watch.begin(FakeServer(PlainClient()), log).findings(0.0) == []


def test_what_a_background_task_says_when_it_dies_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Task exception was never retrieved, before the test\n")
    watch = Watch.begin(FakeServer(PlainClient()), log)
    assert watch.findings(0.0) == []
    with log.open("a") as more:
        more.write("all is well\nTask exception was never retrieved\nException in thread engine:\n")
    assert watch.findings(0.0) == ["Task exception was never retrieved", "Exception in thread engine:"]


def piece(token: int, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "text": "x", "token_ids": [token], "finish_reason": finish}
    return {"choices": [choice]}


ERROR = {"error": {"code": 500, "message": "no"}}
DONE = "[DONE]"
ENDS: dict[str, tuple[list[Any], bool]] = {
    "finished": ([piece(1), piece(2, "stop"), DONE], True),
    "two finished": ([piece(1, "stop"), piece(1, "length", 1), DONE], True),
    "error": ([piece(1), ERROR], True),
    "error at once": ([ERROR], True),
    "cut": ([piece(1)], False),
    "cut after the finish": ([piece(1, "stop")], False),
    "done without a finish": ([piece(1), DONE], False),
    "done without an answer": ([DONE], False),
    "one of two finished": ([piece(1, "stop"), piece(1, None, 1), DONE], False),
    "finished and error": ([piece(1, "stop"), ERROR, DONE], False),
    "two errors": ([ERROR, ERROR], False),
    "an answer after the error": ([ERROR, piece(1)], False),
}


@contextmanager
def answering(frames: list[Any]) -> Iterator[Client]:
    """A server that says these frames to everybody."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            for frame in frames:
                self.wfile.write(f"data: {frame if frame == DONE else json.dumps(frame)}\n\n".encode())

        def log_message(self, *_words: object) -> None:
            """It keeps no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Client(server.server_address[1], "m")
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("frames", "is_proper"), ENDS.values(), ids=ENDS.keys())
def test_a_stream_ends_in_exactly_one_way(frames: list[Any], is_proper: bool) -> None:
    with answering(frames) as client:
        client.stream([1]).finish()
        assert (client.improper == []) is is_proper
        assert client.open_streams == set()


def test_a_leg_or_a_dead_task_of_a_gateway_between_puppets_is_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        only = PuppetWorker("unified", SECRET)
        async with puppet_mesh(tmp_path, only) as made:
            asked = made.asking(max_tokens=1)
            submit = await only.submitted()
            with pytest.raises(AssertionError, match=r"unified-0: 1"):
                await made.check(is_served=False)
            only.say(submit, 9, finish="length")
            assert (await asked).status == 200
            await made.check(is_served=True)
            asyncio.get_running_loop().call_exception_handler({"message": "a task has died"})
            with pytest.raises(AssertionError, match="a task has died"):
                await made.check(is_served=False)
            made.complaints.clear()

    run(scenario)
