"""A worker told to stop keeps what others wait for, and takes what has begun elsewhere."""

from pathlib import Path

from atomesh.engine.options import EngineOptions
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.handoff_pair import handoff_pair
from atomesh.testing.served_process import wait_for
from atomesh.testing.tiny_model import write_tiny_model

OPTIONS = EngineOptions(dtype="float32", kv_memory=2 * 2**20, max_model_len=256, threads=1)


def request_of(request_id: str) -> GenerationRequest:
    sampling = SamplingSpec(seed=0, max_tokens=6, temperature=0.0)
    return GenerationRequest(request_id=request_id, prompt_token_ids=list(range(3, 103)), sampling=sampling)


def test_draining_workers_finish_a_hand_off_between_its_legs(tmp_path: Path) -> None:
    listen = (f"unix:{tmp_path}/p.kv", f"unix:{tmp_path}/d.kv")
    with handoff_pair(write_tiny_model(tmp_path / "model"), listen, OPTIONS) as pair:
        pair.decode.faults.arm("kv_refuse_reserve")
        ticket, first = pair.start(request_of("begun"))
        pair.prefill.loop.drain()
        pair.decode.loop.drain()
        [refused] = pair.start(request_of("new"))[1]
        assert refused.error is not None
        assert refused.error.kind == "ServiceUnavailableError"
        assert not pair.prefill.loop.is_drained  # decode has not pulled yet
        deltas = pair.go_on(request_of("begun"), ticket, first)
        assert deltas[0].kv_source == "transferred"
        assert sum(len(delta.token_ids) for delta in (*first, *deltas)) == 6
        wait_for(lambda: pair.prefill.loop.is_drained and pair.decode.loop.is_drained, timeout_s=2.0)


def test_draining_prefill_gives_up_kv_that_nobody_calls_for(tmp_path: Path) -> None:
    listen = (f"unix:{tmp_path}/p.kv", f"unix:{tmp_path}/d.kv")
    with handoff_pair(write_tiny_model(tmp_path / "model"), listen, OPTIONS) as pair:
        pair.decode.faults.arm("kv_refuse_reserve")
        pair.start(request_of("left"))
        pair.prefill.loop.drain()
        pair.prefill.loop.abort(pair.prefill.mailbox, "left")
        wait_for(lambda: pair.prefill.loop.is_drained, timeout_s=2.0)
