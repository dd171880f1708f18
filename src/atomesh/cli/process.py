"""What every long-running command of ours does to its own process."""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from atomesh.cli.saying import outlive_output, say
from atomesh.observability.log_format import LogFormat, configure_logging

T = TypeVar("T")

ANNOUNCEMENTS = "atomesh.announcements"
_PR_SET_PDEATHSIG = 1
_PARENT_POLL_S = 0.5


def log_to_stderr(level: str, log_format: LogFormat = "text") -> None:
    outlive_output()
    configure_logging(level, log_format, sys.stderr)


def announcer(
    log: logging.Logger, supervisor_pid: int | None, log_format: LogFormat = "text"
) -> Callable[[str], None]:
    """Says a line to whoever started this process: on stderr to a person, at info to a supervisor's log, and
    to what reads JSON as an object, whatever the level of the rest."""
    if supervisor_pid is not None:
        return log.info
    if log_format == "text":
        return say
    announcements = logging.getLogger(ANNOUNCEMENTS)
    announcements.setLevel(logging.INFO)
    return announcements.info


def die_with(parent_pid: int | None) -> None:
    """Be killed when `parent_pid`, which started this process, ends in whatever way; None does nothing."""
    if parent_pid is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:  # it ended before the kernel was told
        os._exit(1)


def run_async(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main` to its end in uvloop where there is one."""
    calm_collector()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main())


def calm_collector() -> None:
    """Let the garbage collector look less often, and never again at what is there by now.

    What a request leaves behind is freed by its reference counts: only cycles wait for the collector.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def on_stop_signals(stop: Callable[[], None]) -> None:
    """Call `stop` in the running event loop at each SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def end_on_sigterm() -> None:
    """Until an event loop takes over, let SIGTERM end the process with its clean-ups done."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        threading.Event().wait(_PARENT_POLL_S)
    os._exit(1)
