"""While one request's grammar is compiled the engine goes on with the others, and hears who leaves."""

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from atomesh.clock import MonotonicClock
from atomesh.engine.build import build_engine
from atomesh.engine.engine_loop import EngineLoop
from atomesh.engine.options import EngineOptions
from atomesh.engine.structured_output.grammars import GrammarCache
from atomesh.frontend.structured_output.model_vocabulary import load_vocabulary
from atomesh.grammars.vocabulary import Vocabulary
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.frames import MessageDecoder, StepFrame, WorkerMessage
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.grammar import GrammarSpec
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.tiny_model import write_tiny_model

PATIENCE_S = 30.0


class Heard:
    """A gateway's end."""

    def __init__(self) -> None:
        self._deltas: SimpleQueue[TokenDelta] = SimpleQueue()
        self._decoder = MessageDecoder(WorkerMessage)

    def send(self, body: bytes, *, is_news: bool = True) -> None:
        message = self._decoder.decode(body)
        if isinstance(message, StepFrame):
            for delta in message.deltas:
                self._deltas.put(delta)

    def answer(self) -> tuple[str, TokenDelta]:
        """Whose answer ends next, and its last delta."""
        while (delta := self._deltas.get(timeout=PATIENCE_S)).finish_reason is None:
            pass
        return delta.request_id, delta


class Shell:
    """An engine whose vocabulary is read only when `gate` opens."""

    def __init__(self, model: Path) -> None:
        checkpoint = open_checkpoint(model)
        options = EngineOptions(dtype="float32", kv_memory=2**21, threads=1)
        self.gate = threading.Event()
        self.engine = build_engine(
            checkpoint, options, secret=b"s" * 32, served_name="tiny", clock=MonotonicClock()
        )

        def load() -> Vocabulary:
            assert self.gate.wait(PATIENCE_S)
            return load_vocabulary(checkpoint)

        self.engine.obey_grammars(GrammarCache(load))
        self.loop = EngineLoop(self.engine, MonotonicClock(), pytest.fail)
        self.heard = Heard()
        self.loop.start()

    def ask(self, request_id: str, grammar: GrammarSpec | None = None) -> None:
        sampling = SamplingSpec(seed=1, max_tokens=8, grammar=grammar)
        self.loop.submit(
            self.heard,
            GenerationRequest(request_id=request_id, prompt_token_ids=[5, 6], sampling=sampling),
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(write_tiny_model(tmp_path / "model"))
    yield made
    made.gate.set()
    made.loop.stop()
    made.engine.close()


BOUND = GrammarSpec(kind="regex", source="[abc]{3}")


def test_others_go_on_and_who_waits_comes_when_it_is_compiled(shell: Shell) -> None:
    shell.ask("bound", BOUND)
    for number in range(3):
        shell.ask(f"free{number}")
        assert shell.heard.answer()[0] == f"free{number}"
    shell.loop.drain()
    assert not shell.loop.is_drained
    shell.gate.set()  # it was here before the worker was told to drain
    name, delta = shell.heard.answer()
    assert (name, delta.finish_reason) == ("bound", "stop")
    assert shell.loop.is_drained


def test_it_is_obeyed_when_it_comes(shell: Shell) -> None:
    shell.ask("bound", BOUND)
    shell.gate.set()
    assert shell.heard.answer()[1].finish_reason == "stop"
    shell.ask("again", BOUND)
    assert shell.heard.answer()[1].finish_reason == "stop"


def test_who_leaves_meanwhile_is_never_computed(shell: Shell) -> None:
    shell.ask("left", BOUND)
    shell.loop.abort(shell.heard, "left")
    shell.gate.set()
    shell.ask("bound", BOUND)
    assert shell.heard.answer()[0] == "bound"
    shell.ask("left", BOUND)  # the id is free again
    assert shell.heard.answer()[0] == "left"
    assert shell.loop.load.generation_tokens == 6


def test_what_cannot_be_obeyed_is_an_error_of_its_own(shell: Shell) -> None:
    shell.gate.set()
    shell.ask("bad", GrammarSpec(kind="json_schema", source='{"not":{}}'))
    name, delta = shell.heard.answer()
    assert (name, delta.error.kind if delta.error else None) == ("bad", "InvalidRequestError")
