"""Whatever the cluster looks like, whoever asks: a placement keeps the rules, and its explanation adds up."""

import random
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replaced

from atomesh.errors import ServiceUnavailableError
from atomesh.mesh.cluster.snapshot import WorkerSnapshot, can_hand_off
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.placement.costs import Costs, LinkCosts, StepCosts
from atomesh.mesh.placement.inputs import RequestFacts
from atomesh.mesh.placement.place import place
from atomesh.mesh.placement.placement import PlacementRules, PrefillDecode, check_options, options
from atomesh.mesh.placement.policies.registry import POLICIES, PolicySet
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.worker import LoadReport, Role, RoleWeights
from atomesh.testing.mesh_snapshots import LAYOUT, worker_snapshot
from atomesh.testing.placed import placement_inputs

COUNTS = st.integers(0, 40)
TOKENS = st.integers(0, 20_000)
SECONDS = st.floats(0.0, 1.0)


@st.composite
def workers(draw: st.DrawFn, name: str) -> WorkerSnapshot:
    total = draw(st.integers(0, 200))
    free = draw(st.integers(0, total))
    return worker_snapshot(
        name,
        layout=draw(st.sampled_from([LAYOUT, LAYOUT, None])),
        state=draw(st.sampled_from(["ready", "ready", "ready", "lost", "draining"])),
        weights=RoleWeights(
            prefill=draw(st.sampled_from([0.0, 0.1, 1.0])), decode=draw(st.sampled_from([0.0, 0.5, 1.0]))
        ),
        load=LoadReport(running=draw(COUNTS), waiting=draw(COUNTS), total_blocks=total, free_blocks=free),
        prefill_tokens=draw(TOKENS),
        prefill_quadratic=draw(st.integers(0, 10**9)),
        sequences=draw(COUNTS),
        decoding=draw(COUNTS),
        context_tokens=draw(TOKENS),
        dispatched=draw(COUNTS),
    )


@st.composite
def clusters(draw: st.DrawFn) -> list[WorkerSnapshot]:
    return [draw(workers(f"w{n}")) for n in range(draw(st.integers(1, 20)))]


@given(
    found=st.lists(st.integers(0, 5), max_size=8).map(
        lambda kinds: [_of_kind(f"w{n}", kind) for n, kind in enumerate(kinds)]
    ),
    rules=st.builds(PlacementRules, st.booleans(), st.booleans()),
)
def test_the_quick_look_finds_what_the_whole_list_says(
    found: list[WorkerSnapshot], rules: PlacementRules
) -> None:
    outcomes = []
    for look in (options, check_options):
        try:
            outcomes.append(("", bool(look(found, rules)) or look is check_options))
        except ServiceUnavailableError as error:
            outcomes.append((error.message, False))
    assert outcomes[0] == outcomes[1]


def _of_kind(name: str, kind: int) -> WorkerSnapshot:
    role: Role = ("unified", "prefill", "decode")[kind % 3]
    layout = LAYOUT if kind < 3 else replaced(LAYOUT, head_dim=2)
    return worker_snapshot(name, role, layout if kind != 4 else None)


@pytest.mark.parametrize("policy", POLICIES)
@given(
    found=clusters(),
    held=st.dictionaries(st.integers(0, 19), st.integers(0, 100), max_size=8),
    costs=st.builds(StepCosts, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, st.integers(1, 4096)),
    link=st.builds(LinkCosts, SECONDS, SECONDS),
    num_tokens=st.integers(1, 1600),
    rules=st.builds(PlacementRules, st.booleans(), st.booleans(), st.booleans()),
    last_way=st.sampled_from([None, "whole", "apart"]),
)
def test_it_keeps_the_rules_and_adds_up(  # each is one thing that hypothesis varies
    policy: str,
    *,
    found: list[WorkerSnapshot],
    held: dict[int, int],
    costs: StepCosts,
    link: LinkCosts,
    num_tokens: int,
    rules: PlacementRules,
    last_way: str | None,
) -> None:
    hashes = tuple(BlockHash(bytes([n]) * 16) for n in range(num_tokens // 16))
    inputs = placement_inputs(
        *found,
        request=RequestFacts(num_tokens, block_hashes=hashes, block_size=16, session="s"),
        matches={f"w{n}-life": MatchedBlocks(min(blocks, len(hashes))) for n, blocks in held.items()},
        costs=Costs(default_step=costs, default_link=link),
        rules=rules,
        last_way=last_way,
        dice=random.Random(num_tokens),
    )
    try:
        decision = place(inputs, PolicySet(policy))
    except ServiceUnavailableError:
        return
    placement, explanation = decision.placement, decision.explanation
    if isinstance(placement, PrefillDecode):
        assert can_hand_off(placement.prefill, placement.decode)
        assert placement.prefill.weights.prefill
        assert placement.decode.weights.decode
        used = [placement.prefill, placement.decode]
    else:
        assert not rules.require_disaggregation
        weights = placement.worker.weights
        assert placement.is_fallback or (weights.prefill and weights.decode)
        used = [placement.worker]
    assert all(worker.state == "ready" for worker in used)
    assert 0 <= placement.cached_tokens < num_tokens
    assert [one.total_s for one in explanation.candidates] == sorted(
        one.total_s for one in explanation.candidates
    )
    for candidate in explanation.candidates:
        assert isfinite(candidate.total_s)
        assert candidate.total_s == pytest.approx(sum(candidate.terms.values()))
    assert explanation.chosen is explanation.candidates[0]
    shown = {name for one in explanation.candidates for name in (one.prefill, one.decode)}
    named = shown | {one.worker for one in explanation.rejected}
    assert named - {None} == {worker.address for worker in found}
    assert explanation.predicted.ttft_s >= 0.0
