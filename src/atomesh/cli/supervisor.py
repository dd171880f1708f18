"""Keeps child processes alive, and none alive after itself."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from atomesh.cli.refusal_pipe import REFUSAL_FD, RefusalPipe
from atomesh.cli.restart_policy import STEADY_S, Ending, GiveUp, decide

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """`words` follow `atomesh` on the command line; `stop_s` is how long the child may take to stop."""

    name: str
    words: Sequence[str]
    stop_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    inherited_fds: tuple[int, ...] = ()
    head_start_s: float = 0.0  # of those before it, at the first start


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the whole cannot go on; `status` is the child's."""

    status: int
    words: str


class Child:
    """One child through all its restarts."""

    def __init__(self, spec: ChildSpec, has_served: Callable[[], bool]) -> None:
        """`has_served`: whether the whole has been ready once; see restart_policy."""
        self._spec = spec
        self._has_served = has_served
        self._process: asyncio.subprocess.Process | None = None
        self._refusal = ""
        self._stopping = asyncio.Event()
        self._gone = asyncio.Event()

    async def keep(self) -> Failure | None:
        """Run it, and again whenever it ends; None once stopped, else why another try has no point."""
        quick_endings = 0
        try:
            await self._let_others_begin()
            while not self._stopping.is_set():
                began = time.monotonic()
                status = await self._run_once()
                quick_endings = 1 if time.monotonic() - began >= STEADY_S else quick_endings + 1
                failure = await self._consider(Ending(status, quick_endings, self._has_served()))
                if failure is not None:
                    return failure
            return None
        finally:
            self._gone.set()

    async def _let_others_begin(self) -> None:
        if self._spec.head_start_s > 0.0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._spec.head_start_s)

    async def stop(self) -> None:
        """Ask it to finish, and kill it when it does not within its `stop_s`."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._gone.wait(), self._spec.stop_s)
        except TimeoutError:
            _log.warning("the %s does not stop within %s s: killed", self._spec.name, self._spec.stop_s)
            self.signal(signal.SIGKILL)
            await self._gone.wait()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _run_once(self) -> int:
        refusal = RefusalPipe()
        with refusal.writable() as descriptor:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "atomesh.cli.main",
                *self._spec.words,
                f"--supervisor-pid={os.getpid()}",
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                env={**os.environ, **self._spec.environment, REFUSAL_FD: str(descriptor)},
                pass_fds=(*self._spec.inherited_fds, descriptor),
                start_new_session=True,  # Ctrl-C is for the supervisor, which stops its children in order
            )
        if self._stopping.is_set():  # told so while it was being started
            self.signal(signal.SIGTERM)
        status = await self._process.wait()
        self._refusal = refusal.read()
        return status

    async def _consider(self, ending: Ending) -> Failure | None:
        """Wait until the next start is due; or the reason why there will be none."""
        if self._stopping.is_set():
            return None
        decision = decide(ending)
        words = f"the {self._spec.name} ended with {_status_words(ending.status)}"
        if isinstance(decision, GiveUp):
            return Failure(ending.status, self._refusal or f"stopped, because {words}: {decision.reason}")
        _log.warning("%s; next start in %.1f s", words, decision.delay_s)
        try:
            await asyncio.wait_for(self._stopping.wait(), decision.delay_s)
        except TimeoutError:
            return None
        return None


class Supervisor:
    """`run` returns None after `stop`, or why it gave up; no child is left either way.

    Children start in the order of `specs` and stop in that order too, each after the one before it has gone.
    """

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self.has_served = False
        self._children = [Child(spec, lambda: self.has_served) for spec in specs]
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish what runs; a second call hurries the children. To be called in the event loop."""
        if self._stopping.is_set():
            for child in self._children:
                child.signal(signal.SIGTERM)
        self._stopping.set()

    async def run(self, on_stopping: Callable[[], None]) -> Failure | None:
        """`on_stopping` is called before the first child is told to stop."""
        keepers = [asyncio.create_task(child.keep()) for child in self._children]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((*keepers, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopping.set()
            on_stopping()
            for child in self._children:
                await child.stop()
            stopping.cancel()
        failures = await asyncio.gather(*keepers)
        return next((failure for failure in failures if failure is not None), None)


def _status_words(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
