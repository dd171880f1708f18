"""Placement without measurements, costs or an index: what a flow or a rule under test needs of it."""

import random
from collections.abc import Sequence
from typing import Any

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.inputs import PlacementInputs, RequestFacts
from atomesh.mesh.placement.place import place_among, place_rest_among
from atomesh.mesh.placement.placement import Placement, PlacementRules, Rest
from atomesh.mesh.placement.policies.registry import PolicySet
from atomesh.protocol.generation import GenerationRequest
from atomesh.testing.mesh_snapshots import MODEL, cluster

NOW = 100.0


def placement_inputs(
    *workers: WorkerSnapshot, request: RequestFacts | None = None, **fields: Any
) -> PlacementInputs:
    """For a prompt of 100 tokens, on these workers; `fields` are PlacementInputs'."""
    values: dict[str, Any] = {"now": NOW, "dice": random.Random(0), **fields}  # noqa: S311  # no secret
    return PlacementInputs(request or RequestFacts(100), MODEL, cluster(*workers), **values)


def place_by_count(
    request: GenerationRequest, workers: Sequence[WorkerSnapshot], rules: PlacementRules
) -> Placement:
    """As the policy least_work has it."""
    facts = RequestFacts(len(request.prompt_token_ids), request.n)
    inputs = placement_inputs(*workers, request=facts, rules=rules)
    return place_among(workers, inputs, PolicySet("least_work")).placement


def place_rest_by_count(rest: Rest, workers: Sequence[WorkerSnapshot], rules: PlacementRules) -> Placement:
    facts = RequestFacts(rest.num_tokens, rest.choices)
    inputs = placement_inputs(*workers, request=facts, rules=rules)
    return place_rest_among(rest, workers, inputs, PolicySet("least_work")).placement
