"""What the gateway learns from its workers' own words, for placement to decide by."""

from dataclasses import dataclass, field

from atomesh.mesh.kv_index.approximate import ApproximateIndex
from atomesh.mesh.kv_index.combined import CombinedIndex
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.placement.cost_model import CostModel


def _index() -> CombinedIndex:
    return CombinedIndex(KVIndex(), ApproximateIndex())


@dataclass(frozen=True, slots=True)
class Knowledge:
    """`index` says where prefixes lie, `costs` how long work takes; one of each for all models."""

    index: CombinedIndex = field(default_factory=_index)
    costs: CostModel = field(default_factory=CostModel)
