"""The index in figures, for the metrics."""

from typing import TYPE_CHECKING

from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.kv_index.combined import CombinedIndex
from atomesh.observability.kv_index_collector import KVIndexReading

if TYPE_CHECKING:
    from atomesh.mesh.kv_index.approximate import ApproximateIndex
    from atomesh.mesh.kv_index.index import KVIndex


def read_index(index: CombinedIndex, registry: WorkerRegistry) -> KVIndexReading:
    """By worker id, where the registry knows whose incarnation it is."""
    counts = index.counts
    indexes: dict[str, KVIndex | ApproximateIndex] = {
        "exact": index.exact,
        "approximate": index.approximate,
    }
    described = [one.description for one in registry.snapshot().workers if one.description is not None]
    names = {one.incarnation: one.worker_id for one in described}
    return KVIndexReading(
        worker_blocks={
            name: {
                names[incarnation]: count
                for incarnation, count in one.blocks_by_worker().items()
                if incarnation in names
            }
            for name, one in indexes.items()
        },
        blocks={name: len(one) for name, one in indexes.items()},
        expired={name: one.num_expired for name, one in indexes.items()},
        evicted={name: one.num_evicted for name, one in indexes.items()},
        events=counts.events,
        snapshots=counts.snapshots,
        left_out=counts.left_out,
        gaps=counts.gaps,
        mismatches=counts.mismatches,
        losses=counts.losses,
        replays=counts.replays,
        malformed=counts.malformed,
    )
