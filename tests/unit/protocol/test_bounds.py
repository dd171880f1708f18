"""What a worker may say of itself: whatever else it says is no message, and names the field."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from atomesh.protocol.frames import Heartbeat, Hello, MessageDecoder, WorkerMessage, encode_message
from atomesh.protocol.sealed_channel import ChannelError
from atomesh.protocol.worker import LoadReport, WorkerDescription, find_fault
from atomesh.testing.mesh_snapshots import LAYOUT, worker_description

GOOD = worker_description("w")
NAN, INF = float("nan"), float("inf")
decoder = MessageDecoder[WorkerMessage](WorkerMessage)


def of_model(**fields: Any) -> WorkerDescription:
    return replace(GOOD, model=replace(GOOD.model, **fields))


def of_layout(**fields: Any) -> WorkerDescription:
    return replace(GOOD, kv_layout=replace(LAYOUT, **fields))


BAD_HELLOS = {
    "model.block_size": [of_model(block_size=size) for size in (0, -16, 2**20 + 1)],
    "model.num_blocks": [of_model(num_blocks=blocks) for blocks in (-4, 2**31 + 1)],
    "model.max_model_len": [of_model(max_model_len=length) for length in (-1, 0, 2**63)],
    "model.vocab_size": [of_model(vocab_size=-1), of_model(vocab_size=2**63)],
    "model.kv_bytes": [of_model(kv_bytes=-1), of_model(kv_bytes=2**64 - 1)],
    "model.eos_token_ids": [of_model(eos_token_ids=(-1,)), of_model(eos_token_ids=tuple(range(1025)))],
    "model.name": [of_model(name=name) for name in ("", "x" * 513, "a\nb", "a\n", "a\0", "a\u2028b", "\x7f")],
    "kv_layout.block_size": [of_layout(block_size=0)],
    "kv_layout.block_bytes": [of_layout(block_bytes=-1)],
    "worker_id": [replace(GOOD, worker_id=name) for name in ("", "w" * 513, 'a"\n', "\u2029")],
    "incarnation": [replace(GOOD, incarnation="x" * 100_000)],
    "kv_address": [replace(GOOD, kv_address="x" * 1000)],
    "max_num_seqs": [replace(GOOD, max_num_seqs=-3)],
    "max_num_batched_tokens": [replace(GOOD, max_num_batched_tokens=2**63)],
    "pid": [replace(GOOD, pid=-1)],
    "engine": [replace(GOOD, engine="")],
}


@pytest.mark.parametrize(
    ("field", "worker"), [(name, bad) for name, all_bad in BAD_HELLOS.items() for bad in all_bad]
)
def test_a_hello_with_what_cannot_be_is_refused_by_the_field(field: str, worker: WorkerDescription) -> None:
    with pytest.raises(ChannelError, match=field) as refused:
        decoder.decode(encode_message(Hello(worker)))
    assert refused.value.fault == "message"
    assert field in (find_fault(worker) or "")


def test_a_hello_within_its_bounds_is_taken() -> None:
    most = replace(
        of_model(name="Modell für Übersetzung/模型", block_size=1, num_blocks=0, eos_token_ids=(2,)),
        worker_id="unix:/tmp/a b.sock",
        max_num_seqs=2**31,
    )
    for worker in (GOOD, most, worker_description("w", layout=None)):
        assert decoder.decode(encode_message(Hello(worker))) == Hello(worker)
        assert find_fault(worker) is None


@pytest.mark.parametrize(
    "load",
    [
        LoadReport(running=-5),
        LoadReport(waiting=2**63),
        LoadReport(prompt_tokens=2**64 - 1),
        LoadReport(step_s=NAN),
        LoadReport(step_s=INF),
        LoadReport(kv_transfers={"sent_committed": -1}),
        LoadReport(kv_transfers={f"x{n}": 1 for n in range(257)}),
        LoadReport(kv_refusals={"y" * 65: 1}),
    ],
)
def test_a_load_that_cannot_be_is_no_message(load: LoadReport) -> None:
    with pytest.raises(ChannelError, match="load"):
        decoder.decode(encode_message(Heartbeat(load)))


def test_every_number_of_a_load_report_is_bounded() -> None:
    for name, default in msgspec.structs.asdict(LoadReport()).items():
        if type(default) is int:
            with pytest.raises(ChannelError, match=name):
                decoder.decode(encode_message(Heartbeat(LoadReport(**{name: -1}))))
