"""How a log line is written: as text for people, or as a JSON object for machines.

A line may carry fields, given as `extra`. Only those named here are written, so that nothing else can slip in
by that way: no prompt, no key, no token.
"""

import json
import logging
import time
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]

FIELDS = (
    "request_id",
    "answer_id",
    "attempt_id",
    "trace_id",
    "leg",
    "worker",
    "incarnation",
    "model",
    "status",
    "outcome",
    "error_type",
    "duration_s",
    "first_byte_s",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "finish_reasons",
    "serving_path",
)


def configure_logging(level: str, log_format: LogFormat, stream: TextIO) -> None:
    """All of this process's log goes to `stream`; `level` is the least urgent that is written."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """In the order of FIELDS; a field that is None was not given."""
    given = record.__dict__
    return {name: given[name] for name in FIELDS if given.get(name) is not None}


class TextFormatter(logging.Formatter):
    """The message, then each field as name=value; a message is one line, whatever it quotes."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _one_line(record.message)
        fields = (f" {name}={_one_line(_plain(value))}" for name, value in fields_of(record).items())
        return super().formatMessage(record) + "".join(fields)


class JsonFormatter(logging.Formatter):
    """In ASCII; `time` is in UTC, RFC 3339; a traceback is in `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
