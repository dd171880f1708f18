"""The simulator decides nothing itself: its objects are those that serve."""

import subprocess
import sys

from atomesh.engine.core import scheduler
from atomesh.mesh.cluster import registry
from atomesh.mesh.kv_index import index
from atomesh.mesh.placement import cost_model, place
from atomesh.planner.simulator import (
    indexes,
    simulated_cluster,
    simulated_gateway,
    simulated_worker,
)

PURE = ("atomesh.engine.core", "atomesh.mesh.cluster", "atomesh.mesh.kv_index", "atomesh.mesh.placement")
FACTS = ("atomesh.errors", "atomesh.clock", "atomesh.byte_size", "atomesh.protocol", "atomesh.planner")


def test_scheduler_and_placement_are_the_production_ones() -> None:
    assert simulated_worker.Scheduler is simulated_cluster.Scheduler is scheduler.Scheduler
    assert simulated_gateway.place is place.place
    assert simulated_gateway.CostModel is cost_model.CostModel
    assert simulated_gateway.WorkerRegistry is registry.WorkerRegistry
    assert issubclass(indexes.EventIndex, index.KVIndex)
    assert not {"match", "predict", "apply"} & vars(indexes.EventIndex).keys()


def test_only_pure_cores_come_along() -> None:
    program = "import sys, atomesh.planner.simulator.simulated_cluster; print(*sorted(sys.modules))"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    loaded = done.stdout.split()
    assert not {"torch", "numpy", "asyncio", "socket", "logging"} & set(loaded)
    own = [name for name in loaded if name.startswith("atomesh.") and name.count(".") > 1]
    packages = {"atomesh.engine", "atomesh.mesh", "atomesh.bench"}
    strangers = [n for n in own if not n.startswith((*PURE, *FACTS)) and n not in packages]
    assert {name for name in strangers if not name.startswith("atomesh.bench.")} == set()
