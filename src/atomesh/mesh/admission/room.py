"""Whether some worker can begin with one more request now, instead of keeping it in a line of its own.

A worker has room for a prompt while fewer prompt tokens lie before it than two steps compute, and for an
answer while its batch and its KV pool have a place. Of an engine that does not say what its steps take, a
line of its own says that it is full. An idle worker always has room: what it cannot do, it refuses.
"""

from collections.abc import Sequence
from math import ceil

from atomesh.mesh.cluster.snapshot import WorkerSnapshot

STEPS_AHEAD = 2  # of prompt tokens, so that the next step is full whenever the gateway looks away
MAX_WAITING = 4


def has_room(workers: Sequence[WorkerSnapshot], prompt_tokens: int, choices: int) -> bool:
    """`workers` are those that placement may choose from; with none of them it is placement that refuses."""
    prefill = [worker for worker in workers if worker.weights.prefill] or workers
    decode = [worker for worker in workers if worker.weights.decode] or workers
    if not workers:
        return True
    return any(map(_has_prefill_room, prefill)) and any(
        _has_decode_room(worker, prompt_tokens, choices) for worker in decode
    )


def total_sequences(workers: Sequence[WorkerSnapshot]) -> int | None:
    """How many sequences can decode at once; None where a worker does not say."""
    limits = [_max_sequences(worker) for worker in workers if worker.weights.decode]
    return None if not limits or 0 in limits else sum(limits)


def _has_prefill_room(worker: WorkerSnapshot) -> bool:
    budget = 0 if worker.description is None else worker.description.max_num_batched_tokens
    if _sequences(worker) == 0:
        return True
    if budget == 0:
        return worker.load.waiting < MAX_WAITING
    return worker.prefill_tokens < STEPS_AHEAD * budget


def _has_decode_room(worker: WorkerSnapshot, prompt_tokens: int, choices: int) -> bool:
    running, limit = _sequences(worker), _max_sequences(worker)
    if running == 0:
        return True
    has_place = running + choices <= limit if limit else worker.load.waiting < MAX_WAITING
    return has_place and _fits(worker, prompt_tokens)


def _fits(worker: WorkerSnapshot, prompt_tokens: int) -> bool:
    """Beside the prompts that it has been sent but has not begun with."""
    load, told = worker.load, worker.description
    if told is None or load.total_blocks == 0:
        return True
    needed = ceil((prompt_tokens + worker.prefill_tokens) / told.model.block_size) + 1
    return load.free_blocks + load.cached_blocks >= min(needed, load.total_blocks)


def _sequences(worker: WorkerSnapshot) -> int:
    """As we know them, or as the worker does if that is more: others may use it too."""
    return max(worker.sequences, worker.load.running + worker.load.waiting)


def _max_sequences(worker: WorkerSnapshot) -> int:
    return 0 if worker.description is None else worker.description.max_num_seqs
