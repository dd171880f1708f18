"""Lines of the log: one each, with the fields that are allowed and no others."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.observability.log_format import (
    FIELDS,
    JsonFormatter,
    LogFormat,
    TextFormatter,
    configure_logging,
)


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("atomesh.test", logging.WARNING, __file__, 1, message, args, None)
    made.created, made.msecs = 1_700_000_000.5, 500.0
    made.__dict__.update(extra)
    return made


def test_a_json_line_is_an_object_with_the_time_in_utc() -> None:
    line = JsonFormatter().format(
        record("worker %s has gone", "w-0", worker="w-0", incarnation="abc", status=200, trace_id=None)
    )
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.500Z",
        "level": "warning",
        "logger": "atomesh.test",
        "message": "worker w-0 has gone",
        "worker": "w-0",
        "incarnation": "abc",
        "status": 200,
    }


def test_a_text_line_ends_with_its_fields() -> None:
    line = TextFormatter().format(
        record("POST /x", status=200, duration_s=0.123456789, finish_reasons=["stop", "length"])
    )
    assert line.endswith(
        " WARNING atomesh.test: POST /x status=200 duration_s=0.123457 finish_reasons=stop,length"
    )


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
@given(text=st.text(max_size=40), value=st.text(max_size=40))
def test_a_line_is_one_line_whatever_it_quotes(formatter: logging.Formatter, text: str, value: str) -> None:
    line = formatter.format(record("it says %s", text, worker=value))
    assert len(line.splitlines()) == 1
    if isinstance(formatter, JsonFormatter):
        told = json.loads(line)
        assert (told["message"], told["worker"]) == (f"it says {text}", value)


def test_other_extras_are_not_written() -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record("said", prompt="a secret", api_key="a secret", token_ids=["a secret"]))
        assert "secret" not in line
    assert not {"prompt", "api_key", "token", "token_ids", "text", "authorization"} & set(FIELDS)


def test_a_traceback_stays_with_its_line() -> None:
    made = record("it failed")
    try:
        raise ValueError("broken")
    except ValueError:
        made.exc_info = sys.exc_info()
    told = json.loads(JsonFormatter().format(made))
    assert told["exception"].endswith("ValueError: broken")
    assert TextFormatter().format(made).endswith("ValueError: broken")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:], logger.level = handlers, level


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_whole_log_goes_to_one_stream_once(root: logging.Logger, log_format: LogFormat) -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", log_format, first)
    configure_logging("warning", log_format, second)
    logging.getLogger("atomesh.somewhere").info("not urgent")
    logging.getLogger("atomesh.somewhere").warning("urgent")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
    assert "urgent" in second.getvalue()
