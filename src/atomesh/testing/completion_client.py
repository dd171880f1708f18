"""A client that hides nothing of a completion: tokens, text, usage, path and the manner of its end.

A whole answer, an answer put together from a stream, and a failure, before the 200 or after it, are all an
Outcome, so that two servers' answers can be compared with `==`.
"""

import http.client
import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 60.0
PATH = "/v1/completions"
# Tokens are exact; logprobs are float32 sums whose order follows from the batch. One worker's own differ by
# up to 7e-6 between a request asked alone, among others, and with a warm prefix.
LOGPROB_TOLERANCE = 2e-5


@dataclass(frozen=True, slots=True)
class Choice:
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """`status` is the error frame's code once the 200 has gone; `choices` what had come until then.

    `headers` and `message` say how it went; two answers are equal without them.
    """

    status: int
    choices: tuple[Choice, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = field(default=None, compare=False)
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    message: str = field(default="", compare=False)
    ended_well: bool = True

    @property
    def path(self) -> str | None:
        return self.headers.get("x-serving-path")

    @property
    def tokens(self) -> tuple[int, ...]:
        """Those of the only choice."""
        [choice] = self.choices
        return choice.token_ids


class Client:
    """Talks to one server on loopback; every request has a connection of its own.

    `improper` tells of the answers that ended neither whole nor in an error, or in both; `open_streams` are
    those that were neither read to their end nor left.
    """

    def __init__(self, port: int, model: str) -> None:
        self.improper: list[str] = []
        self.open_streams: set[Stream] = set()
        self._port = port
        self._model = model

    def complete(self, prompt: Sequence[int] | str, **fields: Any) -> Outcome:
        """A whole answer; greedy with 8 tokens unless `fields` say otherwise. `headers` are HTTP's."""
        headers = fields.pop("headers", {})
        connection, response = self._post(self._body(prompt, fields), headers)
        try:
            answer = _whole(response.status, _lower(response), json.loads(response.read()))
        finally:
            connection.close()
        if answer.status == 200 and not all(choice.finish_reason for choice in answer.choices):
            self.improper.append(f"a 200 without a finish reason: {answer}")
        return answer

    def stream(self, prompt: Sequence[int] | str, **fields: Any) -> "Stream":
        headers = fields.pop("headers", {})
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        stream = Stream(self, *self._post({**self._body(prompt, fields), **usage}, headers))
        self.open_streams.add(stream)
        return stream

    def leave_after(self, seconds: float, prompt: Sequence[int] | str, **fields: Any) -> None:
        """Asks for a stream and hangs up after so long, whatever has come by then."""
        body = json.dumps({**self._body(prompt, fields), "stream": True}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            _listen_for(connection, seconds)

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def _body(self, prompt: Sequence[int] | str, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": 8,
            "temperature": 0,
            "return_token_ids": True,
            **fields,
        }

    def _post(
        self, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        connection.request("POST", PATH, json.dumps(body), {"content-type": "application/json", **headers})
        return connection, connection.getresponse()


class Stream:
    """A streamed answer, taken frame by frame; `status` is that of its head."""

    def __init__(
        self, client: Client, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._client = client
        self._connection = connection
        self._response = response
        self._frames: list[dict[str, Any]] = []
        self.status = response.status
        self.headers = _lower(response)
        self.is_done = False

    def next_frame(self) -> dict[str, Any] | None:
        """The next frame's JSON; None at the end of the stream, and where it is cut."""
        while not self.is_done and (line := self._line()):
            if line == "data: [DONE]":
                self.is_done = True
            elif line.startswith("data: "):
                frame: dict[str, Any] = json.loads(line.removeprefix("data: "))
                self._frames.append(frame)
                return frame
        return None

    def next_tokens(self) -> list[int]:
        """The token ids of the next frame that has a choice; empty at the end."""
        while (frame := self.next_frame()) is not None:
            if frame.get("choices"):
                return [token for choice in frame["choices"] for token in choice["token_ids"]]
        return []

    def finish(self) -> Outcome:
        """Reads to the end and closes."""
        try:
            if self.status != 200:
                return _whole(self.status, self.headers, json.loads(self._response.read()))
            while self.next_frame() is not None:
                pass
            if (fault := self._find_fault()) is not None:
                self._client.improper.append(fault)
            return self._outcome()
        finally:
            self.close()

    def close(self) -> None:
        """The client leaves."""
        self._client.open_streams.discard(self)
        self._response.close()
        self._connection.close()

    def _line(self) -> str:
        """The next line that says something; empty at the end."""
        try:
            while (raw := self._response.readline()) and (not raw.strip() or raw.startswith(b":")):
                pass
        except (http.client.IncompleteRead, ConnectionError):
            return ""
        return raw.decode().rstrip("\n")

    def _find_fault(self) -> str | None:
        """Why this is neither an end with finish reasons and [DONE] nor one with an error frame, or both."""
        errors = ["error" in frame for frame in self._frames]
        pieces = [piece for frame in self._frames for piece in frame.get("choices", [])]
        finished = [piece["index"] for piece in pieces if piece["finish_reason"]]
        is_whole = sorted(finished) == sorted({piece["index"] for piece in pieces}) != []
        if any(errors):
            is_last = sum(errors) == 1 and errors[-1] and not self.is_done
            return None if is_last else f"an error frame that was not the end: {self._frames[-3:]}"
        if is_whole and self.is_done:
            return None
        return f"a stream that was cut ([DONE]: {self.is_done}; finished: {finished}): {self._frames[-2:]}"

    def _outcome(self) -> Outcome:
        error: dict[str, Any] = next((frame["error"] for frame in self._frames if "error" in frame), {})
        pieces = [piece for frame in self._frames for piece in frame.get("choices", [])]
        usages = [frame["usage"] for frame in self._frames if frame.get("usage")]
        indices = sorted({piece["index"] for piece in pieces})
        return Outcome(
            status=error.get("code", 200),
            choices=tuple(_join([one for one in pieces if one["index"] == index]) for index in indices),
            headers=self.headers,
            message=error.get("message", ""),
            ended_well=self.is_done and not error,
            **_usage(usages[-1] if usages else {}),
        )


def _listen_for(connection: socket.socket, seconds: float) -> None:
    leaves_at = time.monotonic() + seconds
    with suppress(TimeoutError):
        while (remaining := leaves_at - time.monotonic()) > 0:
            connection.settimeout(remaining)
            if not connection.recv(65536):
                return


def _whole(status: int, headers: Mapping[str, str], body: Mapping[str, Any]) -> Outcome:
    if status != 200:
        return Outcome(status, headers=headers, message=body["error"]["message"], ended_well=False)
    choices = sorted(body["choices"], key=lambda choice: int(choice["index"]))
    return Outcome(
        status=status,
        choices=tuple(_join([choice]) for choice in choices),
        headers=headers,
        **_usage(body["usage"]),
    )


def _join(pieces: Sequence[Mapping[str, Any]]) -> Choice:
    reasons = [piece["finish_reason"] for piece in pieces if piece.get("finish_reason")]
    if len(reasons) > 1:
        raise AssertionError(f"a choice has ended {len(reasons)} times: {reasons}")
    return Choice(
        token_ids=tuple(token for piece in pieces for token in piece.get("token_ids") or ()),
        text="".join(piece["text"] for piece in pieces),
        finish_reason=reasons[0] if reasons else None,
        logprobs=tuple(
            logprob
            for piece in pieces
            for logprob in (piece.get("logprobs") or {}).get("token_logprobs", ())
            if logprob is not None
        ),
    )


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    details = usage.get("prompt_tokens_details") or {}
    return {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens"),
    }


def _lower(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}
