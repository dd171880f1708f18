"""All that one placement decision reads."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, Protocol

from atomesh.mesh.cluster.snapshot import ClusterSnapshot
from atomesh.mesh.kv_index.matches import NO_MATCHES, Matches
from atomesh.mesh.placement.costs import PRIOR_COSTS, Costs
from atomesh.mesh.placement.placement import PlacementRules
from atomesh.protocol.block_hash import BlockHash

Stage = Literal["prefill", "decode"]
STAGES: tuple[Stage, ...] = ("prefill", "decode")
Way = Literal["whole", "apart"]

EXPECTED_OUTPUT_TOKENS = 128


class Dice(Protocol):
    """What decisions use of random.Random."""

    def randrange(self, stop: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """`block_hashes` are those of the prompt's full blocks; `block_size` is in tokens.

    `output_tokens` is what each of the `choices` is expected to grow by. `policy` is the client's choice of
    one, "" for the operator's. What has the same `session` and `salt` belongs together.
    """

    num_prompt_tokens: int
    choices: int = 1
    output_tokens: int = EXPECTED_OUTPUT_TOKENS
    block_hashes: tuple[BlockHash, ...] = ()
    block_size: int = 32
    policy: str = ""
    session: str = ""
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Weights:
    """How much one second of a kind is worth against a second until the first token.

    `waste`: computing what lies elsewhere, for each request that stands behind one, up to `most_waste`. A
    second of such work is lost to everyone in the queue, so the price grows with it; but more than a few
    prompts' worth of queue would tie all requests to whoever holds their beginning. They were chosen on the
    first half of the conversation trace and on the made-up tenants of benchmarks/placement_robustness.py.
    The first half is flat from a `waste` of 2 to 8 (a load of 1.28, but 1.20 with 0 and 1.27 with 1); where
    many share system prompts, 4 up to 32 has the shorter queues.
    `interference`: each running answer's delay, and each answer's own time after its first token.
    `hysteresis`: the share by which the other way, whole or apart, must be cheaper to be taken next.
    `fetch_margin`: the share of what computing a prefix takes that fetching it must spare.
    """

    waste: float = 4.0
    most_waste: float = 32.0
    interference: float = 0.25
    hysteresis: float = 0.1
    fetch_margin: float = 0.25


@dataclass(frozen=True, slots=True)
class PlacementInputs:
    """`now` is in seconds on the clock of the snapshot's `heard_at`; `last_way` is the way of the model's
    last request, for hysteresis."""

    request: RequestFacts
    model: str
    cluster: ClusterSnapshot
    now: float
    dice: Dice
    excluded: Collection[str] = ()
    matches: Matches = field(default_factory=lambda: NO_MATCHES)
    costs: Costs = PRIOR_COSTS
    rules: PlacementRules = field(default_factory=PlacementRules)
    weights: Weights = field(default_factory=Weights)
    last_way: Way | None = None
