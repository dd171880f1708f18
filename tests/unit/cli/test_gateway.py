import json
import logging
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from atomesh.cli.gateway import awaited, check_workers_file, drain_line
from atomesh.cli.process import ANNOUNCEMENTS, announcer
from atomesh.errors import ConfigurationError
from atomesh.mesh.backends.spec import parse_backend
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.gateway.discovery import DnsSource, FileSource
from atomesh.observability.log_format import configure_logging


def test_what_a_stop_waits_for_is_told() -> None:
    assert drain_line(1, 20.0) == "waiting for 1 answer, at most 20 s; Ctrl-C again stops now"
    assert drain_line(3, 0.5) == "waiting for 3 answers, at most 0.5 s; Ctrl-C again stops now"


def options(*workers: str, **fields: object) -> GatewayOptions:
    return GatewayOptions(workers=workers, secret=b"", admin_token="", **fields)  # type: ignore[arg-type]


def test_where_a_worker_may_come_from_is_told() -> None:
    assert awaited(options()) == "that registers itself"
    assert awaited(options("a:1", "unix:/w")) == "at a:1 or at unix:/w"
    sources = (FileSource(Path("wf.txt")), DnsSource("pool", 8100))
    engine = parse_backend("http://e:8000,kind=openai", {})
    assert awaited(options("a:1", discovery=sources, engines=(engine,))) == (
        "at a:1 or at http://e:8000 or that --workers-file wf.txt names or that dns:pool:8100 names"
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read --workers-file .*wf.txt: No such file or directory; write one address a line"),
        (b"\xff", "cannot read --workers-file .*wf.txt: it is not UTF-8"),
        (b"host:1\nnowhere\n", "--workers-file .*wf.txt cannot be used: .*nowhere"),
        (b"#" * (2**20 + 1), "--workers-file .*wf.txt cannot be used: it has 1048577 bytes; the limit is"),
    ],
)
def test_a_workers_file_that_is_none_is_refused_at_the_start(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    path = tmp_path / "wf.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=says):
        check_workers_file(path)


def test_a_workers_file_that_names_nobody_yet_is_one(tmp_path: Path) -> None:
    path = tmp_path / "wf.txt"
    path.write_text("# to come\n")
    check_workers_file(path)
    check_workers_file(None)


@pytest.fixture
def root_log() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger(ANNOUNCEMENTS).setLevel(logging.NOTSET)


@pytest.mark.usefixtures("root_log")
def test_with_json_what_is_announced_is_an_object_at_every_level() -> None:
    log = StringIO()
    configure_logging("error", "json", log)
    announcer(logging.getLogger("x"), None, "json")("gateway is ready")
    line = json.loads(log.getvalue())
    assert (line["message"], line["level"], line["logger"]) == ("gateway is ready", "info", ANNOUNCEMENTS)


@pytest.mark.usefixtures("root_log")
def test_a_person_reads_the_bare_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("error", "text", StringIO())
    announcer(logging.getLogger("x"), None)("gateway is ready")
    assert capsys.readouterr().err == "gateway is ready\n"
