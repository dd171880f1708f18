"""What a long-running command says to whoever started it; that nobody can hear it ends nothing."""

import atexit
import os
import sys
from contextlib import suppress
from typing import TextIO

STANDARD = ("stdin", "stdout", "stderr")


def say(line: str) -> None:
    """A line for a person, on stderr."""
    write(line + "\n", sys.stderr)


def answer(line: str) -> None:
    """A line of what was asked for, on stdout."""
    write(line + "\n", sys.stdout)


def write(text: str, stream: TextIO) -> None:
    """Lost where `stream` is closed, its disk full, or its reader gone."""
    with suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()


def outlive_output() -> None:
    """From now on neither closed standard streams nor lost words decide how this process ends.

    Closed ones lead to the null device, lest a socket be opened in their place and be written to.
    """
    for descriptor, name in enumerate(STANDARD):
        _fill(descriptor)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))
    atexit.register(_let_go)


def _fill(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)
        os.set_inheritable(descriptor, True)


def _let_go() -> None:
    """Python ends with status 120 when it cannot write what is left."""
    for stream in (sys.stdout, sys.stderr):
        if not _can_flush(stream):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _can_flush(stream: TextIO) -> bool:
    try:
        stream.flush()
    except (OSError, ValueError):
        return False
    return True
