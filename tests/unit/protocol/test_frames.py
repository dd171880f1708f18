import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.protocol import frames
from atomesh.protocol.frames import (
    Abort,
    GatewayMessage,
    Heartbeat,
    Hello,
    MessageDecoder,
    StepFrame,
    Submit,
    WorkerMessage,
    encode_message,
)
from atomesh.protocol.generation import GenerationRequest, Timings, TokenDelta, TokenLogprobs, WireError
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.sealed_channel import ChannelError
from atomesh.protocol.worker import LoadReport, ModelDescription, RoleWeights, WorkerDescription

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
WORKER_MESSAGES = [Hello(WORKER), StepFrame([DELTA], LoadReport(running=3)), Heartbeat(LoadReport())]
WORKER_MESSAGES.append(frames.RoleSet(RoleWeights(prefill=0.25, decode=1000.0)))
GATEWAY_MESSAGES = [Submit(REQUEST), Abort("r1"), frames.ResetPrefixCache()]


@pytest.mark.parametrize("messages", [WORKER_MESSAGES, GATEWAY_MESSAGES], ids=["worker", "gateway"])
def test_messages_arrive_as_they_were_sent(messages):
    decoder = MessageDecoder(WorkerMessage if messages is WORKER_MESSAGES else GatewayMessage)
    assert [decoder.decode(encode_message(message)) for message in messages] == messages


@pytest.mark.parametrize("weight", [-0.1, 1000.1, float("nan"), float("inf")])
def test_a_role_out_of_bounds_is_no_message(weight):
    for name in ("prefill", "decode"):
        body = encode_message(frames.RoleSet(RoleWeights(**{name: weight})))
        with pytest.raises(ChannelError, match="not a message of this plane"):
            MessageDecoder(WorkerMessage).decode(body)


def test_a_side_refuses_messages_that_are_not_for_it():
    with pytest.raises(ChannelError, match="not a message of this plane"):
        MessageDecoder(GatewayMessage).decode(encode_message(Hello(WORKER)))


def test_a_message_nested_too_deeply_is_refused():
    body = b"\x82\xa4type\xa5abort\xa1x" + b"\x91" * 100_000 + b"\x90"
    with pytest.raises(ChannelError, match="nested too deeply"):
        MessageDecoder(GatewayMessage).decode(body)


def test_a_message_above_the_limit_is_not_sent(monkeypatch):
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 8)
    with pytest.raises(ChannelError, match="the limit is 8"):
        encode_message(Abort("a long request id"))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_bring_a_refusal_or_a_message(body):
    message: GatewayMessage | None = None
    with contextlib.suppress(ChannelError):
        message = MessageDecoder(GatewayMessage).decode(body)
    assert message is None or isinstance(message, Submit | Abort | frames.ResetPrefixCache)
