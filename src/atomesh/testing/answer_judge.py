"""What every answer of the HTTP face must be, whatever was asked: one of a few statuses, in a known shape."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

DONE = "data: [DONE]\n\n"
LAST_EVENTS = tuple(
    f"event: {name}\n"
    for name in ("message_stop", "response.completed", "response.incomplete", "response.failed")
)
BY_DESIGN = (503,)  # the only fault of a server that is a whole one's answer: not now


class AnswerJudge:
    """Of a server that describes itself in this OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def is_operators(self, method: str, path: str) -> bool:
        """Whether it needs the admin token."""
        told: bool = self._document["paths"][path][method.lower()]["security"] == [{"adminToken": []}]
        return told

    def findings(
        self, method: str, path: str, status: int, headers: Mapping[str, str], body: str
    ) -> list[str]:
        """All that is not as it must be, in words; `path` as the document has it."""
        told = self._document["paths"][path][method.lower()]["responses"]
        return [*self._find(told, status, headers, body)]

    def _find(
        self, told: Mapping[str, Any], status: int, headers: Mapping[str, str], body: str
    ) -> Iterator[str]:
        if status >= 500 and status not in BY_DESIGN:
            yield f"status {status}"
        if str(status) not in told:
            yield f"status {status} is not in the document, which has {', '.join(told)}"
            return
        if not headers.get("x-request-id"):
            yield "there is no x-request-id"
        media_type = headers.get("content-type", "").partition(";")[0]
        content = told[str(status)]["content"]
        if media_type not in content:
            yield f"the content type {media_type!r} is not in the document, which has {', '.join(content)}"
        elif media_type == "application/json":
            yield from self._misfits(content[media_type]["schema"], body)
        elif media_type == "text/event-stream":
            yield from improper_stream(body)

    def _misfits(self, schema: Mapping[str, Any], body: str) -> Iterator[str]:
        try:
            value = json.loads(body)
        except ValueError as error:
            yield f"the body is no JSON: {error}"
            return
        whole = {**schema, "components": self._document["components"]}
        for misfit in Draft202012Validator(whole).iter_errors(value):
            yield f"{misfit.json_path}: {misfit.message[:300]}"


def improper_stream(body: str) -> Sequence[str]:
    """Nothing where it ends in exactly one of [DONE] and an error frame, and all between is JSON."""
    frames = [frame for frame in body.split("\n\n") if frame and not frame.startswith(":")]
    if not body.endswith("\n\n") or not frames:
        return [f"the stream ends with {body[-80:]!r}"]
    is_done = frames[-1] == DONE.strip() or frames[-1].startswith(LAST_EVENTS)
    is_error = frames[-1].startswith("event: error\ndata: ")
    if not (is_done or is_error):
        return [f"the stream ends with {frames[-1][:80]!r}"]
    for frame in frames[:-1]:
        data = frame.rpartition("data: ")[2]
        try:
            json.loads(data)
        except ValueError:
            return [f"a frame is {frame[:80]!r}"]
    return []
