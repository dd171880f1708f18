"""`atomesh serve` with a tiny model: real processes, killed and stopped in every way."""

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from atomesh.testing.served_process import (
    ADMIN_TOKEN,
    Answer,
    ServedProcess,
    children_of,
    command,
    is_alive,
    served_process,
    wait_for,
    wait_ready,
)
from atomesh.testing.tiny_model import write_tiny_model

LONG = 3500  # tokens: some seconds of a tiny model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=4096)


@dataclass(frozen=True)
class Started:
    served: ServedProcess
    before_ready: list[Answer]
    announced: dict[str, object]


@pytest.fixture(scope="module")
def started(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """One server for the tests that leave it whole; its answers are watched from the first instant."""
    with served_process(model, tmp_path_factory.mktemp("home"), "--unified=1") as served:
        before: list[Answer] = []
        while True:
            try:
                answer = served.request("GET", "/health")
                before.append(served.complete("Hi"))
            except OSError:
                assert served.process.poll() is None, served.process.communicate()
                time.sleep(0.02)
                continue
            if answer.status == 200:
                break
            before.append(answer)
        yield Started(served, [a for a in before if a.status != 200], wait_ready(served))
        assert served.process.poll() is None


@pytest.fixture
def server(started: Started) -> Iterator[ServedProcess]:
    """Used by a test, and whole again after it."""
    yield started.served
    wait_for(started.served.is_ready)
    wait_for(lambda: is_idle(started.served))
    assert len(started.served.complete("Hello").body["choices"]) == 1


def is_idle(server: ServedProcess) -> bool:
    [worker] = server.workers()
    load = worker["load"]
    free = load["free_blocks"] + load["cached_blocks"]
    return load["running"] == load["waiting"] == worker["in_flight"] == 0 and free >= load["total_blocks"]


class Stream:
    """A streamed completion, read line by line from a socket."""

    def __init__(
        self, server: ServedProcess, max_tokens: int = LONG, body: dict[str, object] | None = None
    ) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = body or {
            "model": server.model,
            "prompt": [5, 6, 7],
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        self._connection.request(
            "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
        )
        self._response = self._connection.getresponse()
        assert self._response.status == 200

    def next_line(self) -> str:
        while True:
            line = self._response.readline().decode().strip()
            if line and not line.startswith(":"):
                return line

    def text(self) -> str:
        """The whole answer's text, of a stream that ends as it should."""
        raw, ended_well = self.rest()
        frames = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")]
        assert ended_well
        assert frames.pop() == "[DONE]"
        return "".join(json.loads(frame)["choices"][0]["text"] for frame in frames)

    def rest(self) -> tuple[str, bool]:
        """All that still comes, and whether the body then ended as HTTP wants it to; closes."""
        try:
            return self._response.read().decode(), True
        except http.client.IncompleteRead as error:
            return error.partial.decode(), False
        finally:
            self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def test_requests_before_it_is_ready_get_503_and_a_time_to_come_back(started: Started) -> None:
    assert len(started.before_ready) >= 2
    assert {answer.status for answer in started.before_ready} == {503}
    for answer in started.before_ready:
        assert 1 <= int(answer.headers["retry-after"]) <= 120
        assert answer.body["error"]["type"] == "service_unavailable_error"


def test_it_announces_itself_in_one_json_document(started: Started) -> None:
    announced = started.announced
    assert announced["url"] == started.served.url
    assert announced["model"] == "tiny"
    assert announced["pid"] == started.served.process.pid


def test_the_operator_sees_the_worker_and_nobody_else_does(server: ServedProcess) -> None:
    [worker] = server.workers()
    assert (worker["id"], worker["role"], worker["state"]) == ("unified-0", "unified", "ready")
    assert worker["weights"] == {"prefill": 1.0, "decode": 1.0}
    assert worker["pid"] in children_of(server.process.pid)
    assert server.request("GET", "/workers").status == 401
    wrong = server.request("GET", "/workers", token="x" * len(ADMIN_TOKEN))
    assert (wrong.status, wrong.body["error"]["type"]) == (403, "permission_denied")


def test_the_prefix_cache_can_be_reset(server: ServedProcess) -> None:
    def cached(answer: Answer) -> int:
        tokens: int = answer.body["usage"]["prompt_tokens_details"]["cached_tokens"]
        return tokens

    prompt = list(range(100, 170))
    cached_before = [cached(server.complete(prompt)) for _ in range(2)]
    assert server.request("POST", "/reset_prefix_cache", token=ADMIN_TOKEN).status == 200
    assert [*cached_before, cached(server.complete(prompt))] == [0, 64, 0]


def test_a_client_that_leaves_frees_its_blocks(server: ServedProcess) -> None:
    stream = Stream(server)
    stream.next_line()
    assert not is_idle(server)
    stream.close()
    assert wait_for(lambda: is_idle(server)) < 1.0


def test_a_killed_worker_is_an_error_frame_then_503_then_a_new_worker(server: ServedProcess) -> None:
    [before] = server.workers()
    stream = Stream(server)
    stream.next_line()
    os.kill(before["pid"], signal.SIGKILL)
    text, ended_well = stream.rest()
    assert "event: error" in text
    assert json.loads(text.rpartition("data: ")[2])["error"]["code"] == 503
    assert "[DONE]" not in text
    assert not ended_well
    refused = server.complete("Hello")
    assert (refused.status, "retry-after" in refused.headers) == (503, True)
    wait_for(server.is_ready)
    [after] = server.workers()
    assert after["pid"] != before["pid"]
    assert after["incarnation"] != before["incarnation"]


def test_a_worker_that_hangs_is_lost_and_found_again(server: ServedProcess) -> None:
    [before] = server.workers()
    stream = Stream(server)
    stream.next_line()
    os.kill(before["pid"], signal.SIGSTOP)
    try:
        began = time.monotonic()
        text, ended_well = stream.rest()
        assert time.monotonic() - began < 6.0
    finally:
        os.kill(before["pid"], signal.SIGCONT)
    assert "event: error" in text
    assert not ended_well
    assert wait_for(server.is_ready) < 5.0
    [after] = server.workers()
    assert after["incarnation"] == before["incarnation"]


def test_sixty_four_streams_at_once_give_their_solo_answers(server: ServedProcess) -> None:
    prompts = [[10 + index] * (1 + index % 40) for index in range(64)]
    solo = [server.complete(prompt, max_tokens=24).body["choices"][0]["text"] for prompt in prompts]

    def stream(prompt: list[int]) -> str:
        body = {"model": server.model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "stream": True}
        return Stream(server, body=body).text()

    with ThreadPoolExecutor(64) as threads:
        assert list(threads.map(stream, prompts)) == solo


def test_a_killed_gateway_aborts_its_requests_and_comes_back(server: ServedProcess) -> None:
    [worker] = server.workers()
    [gateway] = [pid for pid in direct_children(server) if pid != worker["pid"]]
    stream = Stream(server)
    stream.next_line()
    steps = worker["load"]["steps"]
    os.kill(gateway, signal.SIGKILL)
    assert "[DONE]" not in stream.rest()[0]
    wait_for(server.is_ready)
    [after] = server.workers()
    assert after["incarnation"] == worker["incarnation"]
    assert is_idle(server)
    assert after["load"]["steps"] - steps < LONG / 2


def direct_children(server: ServedProcess) -> list[int]:
    pids = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [int(pid) for pid in pids]


def test_a_port_in_use_is_said_at_once(server: ServedProcess, model: Path) -> None:
    began = time.monotonic()
    second = subprocess.run(
        command("serve", str(model), f"--port={server.port}"), capture_output=True, text=True, check=False
    )
    assert second.returncode == 78
    assert f"127.0.0.1:{server.port}: it is in use" in second.stderr
    assert "--port" in second.stderr
    assert second.stdout == ""
    assert time.monotonic() - began < 5.0


def test_what_is_no_model_ends_it_with_a_reason(tmp_path: Path) -> None:
    with served_process(tmp_path / "no such model", tmp_path, "--prefill=1", "--decode=1") as served:
        output, errors = served.process.communicate(timeout=60)
        assert served.process.returncode == 78
        assert output == ""
        assert "there is no model" in errors
        assert errors.count("\n") == 1


def test_a_killed_supervisor_leaves_no_child(model: Path, tmp_path: Path) -> None:
    with served_process(model, tmp_path, "--unified=1") as served:
        wait_ready(served)
        assert served.request("POST", "/v1/chat/completions", chat_body(served)).status == 200
        children = children_of(served.process.pid)
        assert len(children) >= 2
        served.process.kill()
        served.process.wait()
        wait_for(lambda: not any(is_alive(pid) for pid in children), timeout_s=5.0)


def chat_body(served: ServedProcess) -> dict[str, object]:
    return {"model": served.model, "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}


def test_sigterm_under_load_lets_the_answer_finish(model: Path, tmp_path: Path) -> None:
    with served_process(model, tmp_path, "--unified=1") as served:
        wait_ready(served)
        stream = Stream(served, max_tokens=300)
        stream.next_line()
        children = children_of(served.process.pid)
        served.process.send_signal(signal.SIGTERM)
        text, ended_well = stream.rest()
        assert text.rstrip().endswith("data: [DONE]")
        assert '"finish_reason":"length"' in text
        assert ended_well
        assert served.process.wait(30) == 0
        assert not any(is_alive(pid) for pid in children)


def test_after_sigterm_all_who_come_hear_503_until_the_last_answer_is_over(
    model: Path, tmp_path: Path
) -> None:
    with served_process(model, tmp_path, "--unified=1") as served:
        wait_ready(served)
        streams = [Stream(served, max_tokens=1000) for _ in range(4)]
        for stream in streams:
            stream.next_line()
        served.process.send_signal(signal.SIGTERM)
        with ThreadPoolExecutor(4) as threads:
            rests = [threads.submit(stream.rest) for stream in streams]
            heard: list[Answer] = []
            while True:
                try:
                    answers = [served.complete("Hello"), served.request("GET", "/health")]
                except OSError:
                    break
                heard += answers
                time.sleep(0.1)
            assert all(rest.done() for rest in rests)
        told = {(answer.status, answer.headers["connection"]) for answer in heard}
        assert told == {(503, "close")}
        assert all(1 <= int(answer.headers["retry-after"]) <= 120 for answer in heard)
        assert [rest.result()[0].rstrip().endswith("data: [DONE]") for rest in rests] == [True] * 4
        assert served.process.wait(30) == 0


def test_sigterm_ends_what_takes_too_long_with_an_error_frame(model: Path, tmp_path: Path) -> None:
    with served_process(model, tmp_path, "--unified=1", "--drain-timeout=0.2") as served:
        wait_ready(served)
        stream = Stream(served)
        stream.next_line()
        children = children_of(served.process.pid)
        served.process.send_signal(signal.SIGTERM)
        text, ended_well = stream.rest()
        assert "shutting down" in text
        assert '"code":503' in text
        assert not ended_well
        assert served.process.wait(30) == 0
        assert not any(is_alive(pid) for pid in children)


@pytest.mark.parametrize(
    ("transport", "address"), [("tcp", "127.0.0.1:"), pytest.param("auto", "unix:/", marks=pytest.mark.soak)]
)
def test_kv_goes_the_way_that_was_chosen(model: Path, tmp_path: Path, transport: str, address: str) -> None:
    flags = ("--prefill=1", "--decode=1", f"--kv-transport={transport}")
    with served_process(model, tmp_path, *flags) as served:
        wait_ready(served)
        wait_for(lambda: [worker["state"] for worker in served.workers()] == ["ready", "ready"])
        assert all(worker["kv_address"].startswith(address) for worker in served.workers())
        answer = served.complete(list(range(10, 110)))
        assert (answer.status, answer.headers["x-serving-path"]) == (200, "prefill-decode")
        [decode] = [worker for worker in served.workers() if worker["role"] == "decode"]
        assert decode["load"]["prompt_tokens"] == 0
