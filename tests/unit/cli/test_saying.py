import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest

from atomesh.cli import saying

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="a device that is always full is Linux's")
SPEAKER = """
import os, socket, sys
from atomesh.cli.process import announcer, log_to_stderr
from atomesh.cli.banner import print_starting
import logging
log_to_stderr("info")
announcer(logging.getLogger(), None)("gateway is ready")
logging.getLogger().error("something is wrong")
print_starting("http://127.0.0.1:1", as_json=False)
with socket.socket() as one:
    sys.exit(7 if one.fileno() > 2 else 8)
"""


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    yield stream
    with suppress(OSError):
        stream.close()


def test_a_line_is_written_at_once() -> None:
    stream = io.StringIO()
    saying.write("ready\n", stream)
    assert stream.getvalue() == "ready\n"


def test_a_reader_that_has_gone_does_not_matter(unread: TextIO) -> None:
    saying.write("ready\n", unread)
    with pytest.raises(BrokenPipeError):
        unread.flush()


@needs_full
def test_a_full_disk_does_not_matter() -> None:
    stream = FULL.open("w")
    saying.write("ready\n", stream)
    with pytest.raises(OSError, match="No space"):
        stream.close()


def test_a_closed_stream_does_not_matter() -> None:
    stream = io.StringIO()
    stream.close()
    saying.write("ready\n", stream)


@needs_full
@pytest.mark.parametrize("redirection", [">/dev/full 2>/dev/full", ">&- 2>&- <&-", ">&-", "2>&-"])
def test_words_that_are_lost_do_not_decide_how_a_process_ends(redirection: str) -> None:
    words = ["/bin/sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, SPEAKER]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    assert ended.returncode == 7
    assert "Traceback" not in ended.stderr
    if redirection == "2>&-":
        assert ended.stdout == "ATOMesh " + ended.stdout.partition(" ")[2]
        assert "gateway" not in ended.stdout
