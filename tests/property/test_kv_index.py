"""The KV index against the plainest model of it, and against the engine whose events it hears."""

import hashlib
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.mesh.kv_index.approximate import ApproximateIndex
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.ordering import EventFeed
from atomesh.protocol.block_hash import BlockHash, BlockHasher
from atomesh.protocol.kv_events import BlocksRemoved, BlocksStored, CacheCleared, add_to_digest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_engine import SECRET, ScriptedEngine, scripted_request

WORKERS = ("a", "b", "c")
TTL_S = 10.0
HASHES = [BlockHash(hashlib.blake2b(bytes([number]), digest_size=16).digest()) for number in range(12)]
workers = st.sampled_from(WORKERS)
blocks = st.lists(st.sampled_from(HASHES), unique=True, max_size=6)


class IndexModel(RuleBasedStateMachine):
    """Each worker holds a set of blocks, and is believed to hold others until a time."""

    def __init__(self) -> None:
        super().__init__()
        self.index = KVIndex(prediction_s=TTL_S)
        self.now = 0.0
        self.held: dict[str, set[BlockHash]] = {}
        self.promised: dict[str, dict[BlockHash, float]] = {}
        for worker in WORKERS:
            self.join(worker)

    @rule(worker=workers)
    def join(self, worker: str) -> None:
        self.index.join(worker)
        self.held.setdefault(worker, set())
        self.promised.setdefault(worker, {})

    @rule(worker=workers)
    def drop(self, worker: str) -> None:
        self.index.drop(worker)
        self.held.pop(worker, None)
        self.promised.pop(worker, None)

    @rule(worker=workers, hashes=blocks)
    def store(self, worker: str, hashes: list[BlockHash]) -> None:
        if worker in self.held:
            self.index.apply(worker, [BlocksStored(b"", list(hashes))])
            self.held[worker].update(hashes)
            for one in hashes:
                self.promised[worker].pop(one, None)

    @rule(worker=workers, hashes=blocks)
    def remove(self, worker: str, hashes: list[BlockHash]) -> None:
        if worker in self.held:
            self.index.apply(worker, [BlocksRemoved(list(hashes))])
            self.held[worker].difference_update(hashes)
            for one in hashes:
                self.promised[worker].pop(one, None)

    @rule(worker=workers)
    def clear(self, worker: str) -> None:
        if worker in self.held:
            self.index.apply(worker, [CacheCleared()])
            self.held[worker], self.promised[worker] = set(), {}

    @rule(worker=workers, hashes=blocks)
    def predict(self, worker: str, hashes: list[BlockHash]) -> None:
        self.index.predict(worker, hashes, self.now)
        if worker in self.held:
            unknown = [one for one in hashes if one not in self.held[worker]]
            self.promised[worker].update(dict.fromkeys(unknown, self.now + TTL_S))

    @rule(worker=workers, hashes=blocks)
    def snapshot(self, worker: str, hashes: list[BlockHash]) -> None:
        if worker not in self.held:
            return
        slot = self.index.begin_snapshot(worker)
        assert slot is not None
        for one in hashes:
            self.index.add_to_snapshot(slot, [one], "device")
        self.index.end_snapshot(slot)
        self.held[worker] = set(hashes)
        for one in hashes:
            self.promised[worker].pop(one, None)

    @rule(seconds=st.floats(0.0, 12.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(hashes=blocks)
    def match(self, hashes: list[BlockHash]) -> None:
        expected = {worker: run for worker in self.held if (run := self._run(worker, hashes))}

        assert {name: found.total for name, found in self.index.match(hashes, self.now).items()} == expected

    @invariant()
    def digests_are_those_of_what_is_held(self) -> None:
        for worker, held in self.held.items():
            assert self.index.digest(worker) == add_to_digest(0, held)

    @invariant()
    def the_index_does_not_contradict_itself(self) -> None:
        self.index.check_invariants()

    def _run(self, worker: str, hashes: Sequence[BlockHash]) -> int:
        """How many blocks from the first on the worker holds, or may be believed to."""
        run = 0
        for one in hashes:
            if one not in self.held[worker] and self.promised[worker].get(one, 0.0) <= self.now:
                break
            run += 1
        return run


TestIndexModel = IndexModel.TestCase
TestIndexModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class SmallIndex(RuleBasedStateMachine):
    """With room for less than there is: never more than its limit, never a block that nobody holds."""

    def __init__(self) -> None:
        super().__init__()
        self.index = KVIndex(max_blocks=5, max_slots=4)
        self.held: dict[str, set[BlockHash]] = {worker: set() for worker in WORKERS}
        for worker in WORKERS:
            self.index.join(worker)

    @rule(worker=workers, hashes=blocks)
    def store(self, worker: str, hashes: list[BlockHash]) -> None:
        new = [one for one in hashes if one not in self.held[worker]]
        self.index.apply(worker, [BlocksStored(b"", list(new))])
        self.held[worker].update(new)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([name for name, held in self.held.items() if held]))
        gone = data.draw(st.lists(st.sampled_from(sorted(self.held[worker])), unique=True))
        self.index.apply(worker, [BlocksRemoved(list(gone))])
        self.held[worker].difference_update(gone)

    @rule(worker=workers)
    def restart(self, worker: str) -> None:
        self.index.drop(worker)
        assert self.index.join(worker)
        self.held[worker] = set()

    @invariant()
    def all_is_bounded_true_and_counted(self) -> None:
        self.index.check_invariants()
        for worker, held in self.held.items():
            assert self.index.digest(worker) == add_to_digest(0, held)
        for one in HASHES:
            found = self.index.match([one], 0.0)
            assert all(one in self.held[worker] for worker in found)


TestSmallIndex = SmallIndex.TestCase
TestSmallIndex.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(
    st.lists(
        st.tuples(st.sampled_from(("a", "b")), blocks, st.floats(0.0, 70.0)),
        max_size=20,
    ),
    st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_the_approximate_index_believes_only_what_was_sent_lately_and_fits(
    sent: list[tuple[str, list[BlockHash], float]], capacity: int
) -> None:
    index, now, last = ApproximateIndex(lifetime_s=60.0), 0.0, dict[tuple[str, BlockHash], float]()
    for worker in ("a", "b"):
        index.join(worker, capacity)
    for worker, hashes, pause_s in sent:
        now += pause_s
        index.predict(worker, hashes, now)
        last.update({(worker, one): now for one in hashes})
        index.check_invariants()
        for name in ("a", "b"):
            believed = [one for one in HASHES if name in index.match([one], now)]
            assert len(believed) <= capacity
            assert all(now - last[name, one] < 60.0 for one in believed)
        run = min(len(hashes), capacity)
        assert not run or index.match(hashes, now)[worker].device == run


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 12), st.sampled_from(["", "t"])),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 3),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_an_index_that_hears_an_engine_knows_what_it_would_find_cached(
    asked: list[tuple[int, int, int, str]], loss: int, resets: bool
) -> None:
    """Prompts share prefixes, the pool is too small for all, and some batches may be lost on the way."""
    config = SchedulerConfig(
        max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, block_size=4, num_blocks=20
    )
    engine, index = ScriptedEngine(config), KVIndex()
    index.join("w")
    wanted: list[int] = []
    feed = EventFeed(index, "w", lambda: wanted.append(1))
    feed.begin(0.0)
    hasher = BlockHasher(SECRET, "scripted", 4)
    prompts = [([family * 100 + at for at in range(length)], salt) for family, length, _, salt in asked]
    for number, ((tokens, salt), (_, _, output, _)) in enumerate(zip(prompts, asked, strict=True)):
        engine.engine.add(
            scripted_request(
                str(number), tokens, SamplingSpec(seed=number, max_tokens=output), cache_salt=salt
            )
        )
    steps = 0
    while engine.engine.has_work():
        engine.step()
        steps += 1
        if resets and steps == 5:
            engine.engine.reset_prefix_cache()
        batch = engine.engine.take_news().kv_events
        if not loss or steps % (loss + 1):
            feed.hear(batch, steps * 0.1)
        if wanted:
            wanted.clear()
            for part in engine.engine.kv_snapshot():
                feed.hear_snapshot(part, steps * 0.1)
    feed.hear(engine.engine.take_news().kv_events, 1e6)
    for part in engine.engine.kv_snapshot() if wanted else ():
        feed.hear_snapshot(part, 1e6)

    kv = engine.scheduler._kv
    for tokens, salt in prompts:
        chain = hasher.chain(tokens, salt)
        found = index.match(chain, 0.0)
        assert (found["w"].device if found else 0) == len(kv.match_hashes(chain))
    index.check_invariants()
