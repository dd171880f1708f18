"""Workers as the mesh's deciding half sees them, with everything a test does not care about filled in."""

from typing import Any

from atomesh.mesh.cluster.snapshot import ClusterSnapshot, WorkerSnapshot
from atomesh.protocol.kv_layout import KVLayout
from atomesh.protocol.worker import PRESETS, LoadReport, ModelDescription, Role, WorkerDescription

MODEL = "m"
LAYOUT = KVLayout(
    name="plain",
    model=MODEL,
    weights="w",
    dtype="float32",
    block_size=16,
    num_layers=1,
    num_kv_heads=1,
    head_dim=1,
    block_bytes=128,
)


def worker_description(
    name: str, role: Role = "unified", layout: KVLayout | None = LAYOUT
) -> WorkerDescription:
    """A worker whose id, incarnation and addresses are all made from `name`; `layout` None: no KV plane."""
    shape = ModelDescription(
        name=MODEL,
        path="",
        architecture="",
        dtype="float32",
        vocab_size=1000,
        max_model_len=4096,
        eos_token_ids=(),
        block_size=16,
        num_blocks=256,
    )
    return WorkerDescription(
        worker_id=name,
        incarnation=f"{name}-life",
        pid=1,
        role=role,
        model=shape,
        kv_address=None if layout is None else f"unix:/{name}.kv",
        kv_layout=layout,
    )


def worker_snapshot(
    name: str, role: Role = "unified", layout: KVLayout | None = LAYOUT, **fields: Any
) -> WorkerSnapshot:
    """A ready, idle worker, heard at 100 s; `fields` are WorkerSnapshot's."""
    values: dict[str, Any] = {
        "state": "ready",
        "description": worker_description(name, role, layout),
        "load": LoadReport(),
        "heard_at": 100.0,
        "in_flight": 0,
        "dispatched": 0,
        "weights": PRESETS[role],
    }
    return WorkerSnapshot(address=name, **{**values, **fields})


def cluster(*workers: WorkerSnapshot) -> ClusterSnapshot:
    return ClusterSnapshot(workers)
