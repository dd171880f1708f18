from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from atomesh.errors import EngineError
from atomesh.mesh.backends import sglang_wire, vllm_wire
from atomesh.mesh.backends.foreign_json import UnreadableError, decode_json
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec

BAD = {
    "deep": b'{"x":' + b"[" * 2000,
    "deep and closed": b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "not UTF-8": b'{"id":"\xff"}',
    "half a surrogate": b'{"id":"\\ud800"}',
    "infinite": b'{"size":1e999}',
    "4,500 digits": b'{"size":1' + b"0" * 4500 + b"}",
    "another type": b'{"size":"1"}',
    "cut": b'{"size":',
    "empty": b"",
}


class Told(msgspec.Struct):
    id: str = ""
    size: float = 0.0


@pytest.mark.parametrize("document", BAD.values(), ids=BAD)
def test_whatever_is_wrong_is_one_error(document: bytes) -> None:
    with pytest.raises(UnreadableError):
        decode_json(document, msgspec.json.Decoder(Told))


def test_what_is_right_is_read() -> None:
    assert decode_json(b'{"id":"a","size":1.5,"x":[]}', msgspec.json.Decoder(Told)) == Told("a", 1.5)


@pytest.mark.parametrize(
    "reader",
    [vllm_wire.AnswerReader, sglang_wire.AnswerReader],
)
@pytest.mark.parametrize("name", ["deep", "deep and closed", "cut", "empty"])
def test_an_answer_that_cannot_be_read_is_the_engine_s_fault(reader: Callable[..., Any], name: str) -> None:
    request = GenerationRequest(
        request_id="r", prompt_token_ids=[1], sampling=SamplingSpec(seed=0, max_tokens=1)
    )
    with pytest.raises(EngineError):
        reader(request).read(BAD[name])
