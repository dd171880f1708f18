import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from atomesh.errors import ConfigurationError, InvalidRequestError
from atomesh.mesh.placement.inputs import RequestFacts
from atomesh.mesh.placement.place import place
from atomesh.mesh.placement.placement import PrefillDecode
from atomesh.mesh.placement.policies.cache_aware import CacheAware
from atomesh.mesh.placement.policies.popularity import MAX_PREFIXES, MEMORY_S, Popularity
from atomesh.mesh.placement.policies.registry import POLICIES, PolicySet
from atomesh.mesh.placement.policies.rules import PolicyRule, PolicyRules, parse_policies
from atomesh.protocol.block_hash import BlockHash
from atomesh.testing.mesh_snapshots import worker_snapshot
from atomesh.testing.placed import placement_inputs

NAMES = ("a", "b", "c", "d")


def chain(*names: object, length: int = 8) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(repr((names, depth)).encode().ljust(32)[-32:]) for depth in range(length))


class World:
    """One policy in front of workers whose load a test sets; each placed request counts as a sequence."""

    def __init__(self, policy: str, names: tuple[str, ...] = NAMES) -> None:
        self.sequences = Counter(dict.fromkeys(names, 0))
        self._policies = PolicySet(policy)
        self._dice = random.Random(1)

    def place(self, *prompt: object, keep: bool = False, **facts: Any) -> str:
        """Who gets it; `keep`: it stays there as load."""
        workers = [worker_snapshot(name, sequences=n) for name, n in self.sequences.items()]
        request = RequestFacts(128, block_hashes=chain(*prompt) if prompt else (), block_size=16)
        inputs = placement_inputs(*workers, request=replace(request, **facts), dice=self._dice)
        placement = place(inputs, self._policies).placement
        assert not isinstance(placement, PrefillDecode)
        self.sequences[placement.worker.address] += keep
        return placement.worker.address


def test_round_robin_takes_turns_whatever_the_load_and_who_joins() -> None:
    world = World("round_robin", ("a", "b", "c"))
    world.sequences["b"] = 100
    assert [world.place() for _ in range(4)] == ["a", "b", "c", "a"]
    world.sequences["ab"] = 0
    assert [world.place() for _ in range(4)] == ["ab", "b", "c", "a"]
    del world.sequences["ab"]
    assert [world.place() for _ in range(3)] == ["b", "c", "a"]


def test_random_is_fair_in_the_long_run() -> None:
    world = World("random")
    world.sequences["a"] = 100
    counts = Counter(world.place() for _ in range(400))
    assert all(70 <= counts[name] <= 130 for name in NAMES)


def test_power_of_two_never_takes_the_busiest_and_mostly_the_idlest() -> None:
    world = World("power_of_two")
    world.sequences.update({"a": 3, "b": 2, "c": 1})
    counts = Counter(world.place() for _ in range(400))
    assert counts["a"] == 0
    assert counts["d"] > counts["c"] > counts["b"] > 0
    assert World("power_of_two", ("a",)).place() == "a"


def test_prefix_hash_keeps_prompts_that_begin_alike_together() -> None:
    world = World("prefix_hash")
    homes = {n: world.place(n) for n in range(40)}
    assert set(homes.values()) == set(NAMES)
    assert {n: world.place(n) for n in range(40)} == homes


def test_and_moves_only_the_share_of_a_worker_that_comes() -> None:
    world = World("prefix_hash", ("a", "b", "c"))
    before = {n: world.place(n) for n in range(200)}
    world.sequences["d"] = 0
    moved = {n: home for n in range(200) if (home := world.place(n)) != before[n]}
    assert set(moved.values()) == {"d"}
    assert 30 <= len(moved) <= 70


def test_and_lets_nobody_have_more_than_its_share_and_a_quarter() -> None:
    world = World("prefix_hash")
    for _ in range(100):
        world.place("hot", keep=True)
    assert max(world.sequences.values()) <= 32
    assert sum(world.sequences.values()) == 100


def test_a_prompt_without_a_block_goes_where_the_least_work_is() -> None:
    for policy in ("prefix_hash", "session", "cache_aware"):
        world = World(policy)
        world.sequences.update({"a": 1, "b": 1, "d": 1})
        assert world.place() == "c"


def test_session_stays_whatever_the_prompt_and_knows_salts_apart() -> None:
    world = World("session")
    home = world.place("first", session="s")
    assert {world.place(n, session="s") for n in range(20)} == {home}
    salted = {world.place("first", session="s", salt=f"tenant {n}") for n in range(20)}
    assert len(salted) > 1


def test_session_moves_when_its_worker_has_twice_its_share() -> None:
    world = World("session")
    home = world.place("x", session="s")
    world.sequences[home] = 9
    assert world.place("x", session="s") != home


def test_session_without_a_key_goes_by_the_prompt() -> None:
    session, prefix = World("session"), World("prefix_hash")
    assert [session.place(n) for n in range(20)] == [prefix.place(n) for n in range(20)]


def test_cache_aware_goes_back_where_half_of_the_prompt_was_sent() -> None:
    world = World("cache_aware")
    homes = [world.place(n) for n in range(8)]
    assert Counter(homes) == dict.fromkeys(NAMES, 2)
    assert [world.place(n) for n in range(8)] == homes


def test_cache_aware_puts_balance_first_when_loads_are_far_apart() -> None:
    world = World("cache_aware")
    home = world.place("x")
    world.sequences[home] = 32
    assert world.place("x") == home
    world.sequences[home] = 33
    assert world.place("x") != home


def test_cache_aware_forgets_what_is_oldest() -> None:
    policy = CacheAware(max_blocks=8)
    policies = PolicySet("cache_aware")
    policies._made["cache_aware", "prefill"] = policy
    workers = [worker_snapshot(name) for name in NAMES]
    for n in range(20):
        request = RequestFacts(128, block_hashes=chain(n), block_size=16)
        place(placement_inputs(*workers, request=request), policies)
    assert len(policy._holders) == 8
    assert sum(policy._sizes.values()) == 8


def test_policies_that_count_leave_unified_workers_whole() -> None:
    for policy in set(POLICIES) - {"kv_aware", "least_work"}:
        world = World(policy)
        world.sequences.update({"a": 50, "b": 50, "c": 50})
        world.place("x")


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_places_pairs_too(policy: str) -> None:
    workers = [
        worker_snapshot("p1", "prefill"),
        worker_snapshot("p2", "prefill"),
        worker_snapshot("d1", "decode"),
        worker_snapshot("d2", "decode"),
    ]
    request = RequestFacts(128, block_hashes=chain("x"), session="s", block_size=16)
    placement = place(placement_inputs(*workers, request=request), PolicySet(policy)).placement
    assert isinstance(placement, PrefillDecode)
    assert (placement.prefill.address[0], placement.decode.address[0]) == ("p", "d")


def test_popularity_fades_and_is_bounded() -> None:
    popularity, prefix = Popularity(), BlockHash(b"x" * 16)
    assert [popularity.use(prefix, 0.0) for _ in range(3)] == [0.0, 1.0, 2.0]
    assert popularity.use(prefix, MEMORY_S) == pytest.approx(3.0 / 2.718281828, rel=1e-6)
    for n in range(MAX_PREFIXES):
        popularity.use(BlockHash(n.to_bytes(16, "big")), MEMORY_S)
    assert popularity.use(prefix, MEMORY_S) == 0.0


def test_rules_are_read_as_they_are_written() -> None:
    assert parse_policies(()) == PolicyRules()
    texts = ("random", "model=org/m,prefill=session,decode=power_of_two", "model=x,decode=round_robin")
    assert parse_policies(texts).rules == (
        PolicyRule(prefill="random"),
        PolicyRule("org/m", "session", "power_of_two"),
        PolicyRule("x", decode="round_robin"),
    )
    named = parse_policies(("model=org/m,least_work", "session, model = x"))
    assert named.rules == (PolicyRule("org/m", "least_work"), PolicyRule("x", "session"))


@pytest.mark.parametrize(
    ("model", "names"),
    [("x", ["session", "random"]), ("y", ["least_work", "least_work"]), ("z", ["prefix_hash", "least_work"])],
)
def test_a_models_own_rule_goes_before_that_for_all(model: str, names: list[str]) -> None:
    rules = parse_policies(
        ("model=x,prefill=session,decode=random", "least_work", "model=z,prefill=prefix_hash")
    )
    policies = rules.for_model(model)
    assert [policies.name("", "prefill"), policies.name("", "decode")] == names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("best", "no placement policy 'best'; there are kv_aware"),
        ("prefill=best", "no placement policy 'best'"),
        ("decode=", "write NAME"),
        ("", "write NAME"),
        ("pool=random", "write NAME"),
        ("prefill=random,prefill=session", "write NAME"),
        ("prefill=random,session", "write NAME"),
        ("random,session", "write NAME"),
        ("model=x,", "write NAME"),
        ("model=x,best", "no placement policy 'best'"),
    ],
)
def test_rules_that_are_none_are_refused_with_the_remedy(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse_policies((text,))


def test_two_rules_for_one_model_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="2 times for all models"):
        parse_policies(("random", "session"))
    with pytest.raises(ConfigurationError, match="2 times for the model 'x'"):
        parse_policies(("model=x,prefill=random", "model=x,decode=random"))


def test_a_policy_set_refuses_unknown_defaults() -> None:
    with pytest.raises(InvalidRequestError):
        PolicySet("best")
