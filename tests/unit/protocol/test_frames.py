import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.protocol import frames
from atomesh.protocol.frames import (
    Abort,
    Answer,
    Challenge,
    FrameDecoder,
    FrameError,
    GatewayMessage,
    Heartbeat,
    Hello,
    StepFrame,
    Submit,
    WorkerMessage,
    encode_frame,
)
from atomesh.protocol.generation import GenerationRequest, Timings, TokenDelta, TokenLogprobs, WireError
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import LoadReport, ModelDescription, WorkerDescription

REQUEST = GenerationRequest(
    request_id="r1",
    prompt_token_ids=[1, 2, 3],
    sampling=SamplingSpec(seed=-(2**63), max_tokens=5, logit_bias={7: -1.5}, bad_words=((1, 2), (3,))),
    n=2,
    cache_salt="tenant",
)
DELTA = TokenDelta(
    request_id="r1",
    choice=1,
    token_ids=[9],
    logprobs=[TokenLogprobs(9, -0.25, 1, [(9, -0.25), (4, -2.0)])],
    prompt_logprobs=[None, TokenLogprobs(2, -1.0, 3, [])],
    finish_reason="error",
    cached_tokens=32,
    timings=Timings(0.5, 0.25),
    error=WireError("EngineError", "broken", "prompt"),
)
MODEL = ModelDescription(
    name="m", path="p", architecture="llama", dtype="float32", vocab_size=10, max_model_len=64,
    eos_token_ids=(2,), block_size=16, num_blocks=8,
)  # fmt: skip
WORKER = WorkerDescription(worker_id="w", incarnation="abc", pid=1, role="unified", model=MODEL)
WORKER_MESSAGES = [
    Challenge(b"n" * 32),
    Hello(b"p" * 32, WORKER),
    StepFrame([DELTA], LoadReport(running=3)),
    Heartbeat(LoadReport()),
]
GATEWAY_MESSAGES = [Answer(b"p" * 32, b"n" * 32), Submit(REQUEST), Abort("r1"), frames.ResetPrefixCache()]


@pytest.mark.parametrize("messages", [WORKER_MESSAGES, GATEWAY_MESSAGES], ids=["worker", "gateway"])
@given(cut=st.integers(1, 64))
def test_messages_survive_any_cut_of_the_stream(messages, cut):
    union = WorkerMessage if messages is WORKER_MESSAGES else GatewayMessage
    stream = b"".join(encode_frame(message) for message in messages)
    decoder = FrameDecoder(union)
    heard = [
        message
        for start in range(0, len(stream), cut)
        for message in decoder.feed(stream[start : start + cut])
    ]
    assert heard == messages


def test_a_side_refuses_messages_that_are_not_for_it():
    with pytest.raises(FrameError, match="not a message of this plane"):
        FrameDecoder(GatewayMessage).feed(encode_frame(Challenge(b"n")))


def test_a_frame_nested_too_deeply_is_refused():
    body = b"\x82\xa4type\xa6answer\xa1x" + b"\x91" * 100_000 + b"\x90"
    with pytest.raises(FrameError, match="nested too deeply"):
        FrameDecoder(GatewayMessage).feed(struct.pack("<I", len(body)) + body)


def test_an_announced_length_above_the_limit_is_refused_before_its_bytes_come():
    with pytest.raises(FrameError, match=f"the limit is {frames.MAX_FRAME_BYTES}"):
        FrameDecoder(WorkerMessage).feed(struct.pack("<I", frames.MAX_FRAME_BYTES + 1))


def test_a_message_above_the_limit_is_not_sent(monkeypatch):
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 8)
    with pytest.raises(FrameError, match="the limit is 8"):
        encode_frame(Abort("a long request id"))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_bring_a_frame_error_or_nothing(data):
    body = struct.pack("<I", len(data)) + data
    try:
        messages = FrameDecoder(GatewayMessage).feed(body)
    except FrameError:
        messages = []
    assert all(isinstance(message, Answer | Submit | Abort | frames.ResetPrefixCache) for message in messages)
