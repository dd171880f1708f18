"""Whatever happens to workers: the snapshot is that of a registry which had never been asked before."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from atomesh.mesh.cluster.registry import Commitment, Work, WorkerRegistry
from atomesh.mesh.cluster.snapshot import ClusterSnapshot
from atomesh.protocol.worker import LoadReport, RoleWeights
from atomesh.testing.mesh_snapshots import MODEL, worker_description

ADDRESSES = st.sampled_from(["a", "b"])


class TwoRegistries(RuleBasedStateMachine):
    """One is asked after every step, the other is made to forget what it has shown."""

    commitments = Bundle("commitments")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.registries = [WorkerRegistry(lambda _: None), WorkerRegistry(lambda _: None)]
        for registry in self.registries:
            for address in "ab":
                registry.expect(address)

    @rule(address=ADDRESSES)
    def connect(self, address: str) -> None:
        self.now += 1.0
        for registry in self.registries:
            registry.connected(address, worker_description(address), self.now)

    @rule(address=ADDRESSES, tokens=st.integers(0, 5000), draining=st.booleans())
    def hear(self, address: str, tokens: int, draining: bool) -> None:
        self.now += 0.1
        for registry in self.registries:
            registry.heard(address, LoadReport(prompt_tokens=tokens, draining=draining), self.now)

    @rule(address=ADDRESSES)
    def lose(self, address: str) -> None:
        for registry in self.registries:
            registry.lost(address)

    @rule(address=ADDRESSES)
    def replace(self, address: str) -> None:
        for registry in self.registries:
            registry.forget(address)
            registry.expect(address)

    @rule(address=ADDRESSES, prefill=st.sampled_from([0.0, 1.0]))
    def weigh(self, address: str, prefill: float) -> None:
        for registry in self.registries:
            registry.set_weights(address, RoleWeights(prefill=prefill))

    @rule(address=ADDRESSES)
    def drain(self, address: str) -> None:
        for registry in self.registries:
            registry.drain(address, lambda: None)

    @rule(target=commitments, address=ADDRESSES, tokens=st.integers(0, 3000))
    def commit(self, address: str, tokens: int) -> list[Commitment]:
        work = Work(tokens, 2, tokens * tokens, 1, tokens)
        return [registry.commit_work(address, work) for registry in self.registries]

    @rule(pair=commitments)
    def prefill(self, pair: list[Commitment]) -> None:
        for one in pair:
            one.sent()
            one.prefilled()

    @rule(pair=commitments, well=st.booleans())
    def judge(self, pair: list[Commitment], well: bool) -> None:
        for one in pair:
            if well:
                one.succeeded()
            else:
                one.failed(self.now)

    @rule(pair=consumes(commitments))
    def end(self, pair: list[Commitment]) -> None:
        for one in pair:
            one.end()

    @invariant()
    def nothing_old_is_shown(self) -> None:
        asked, forgetful = self.registries
        for worker in forgetful._workers.values():
            worker.touch()
        assert asked.snapshot() == forgetful.snapshot()
        assert asked.snapshot() is asked.snapshot()
        assert asked.snapshot().ready(MODEL) == ClusterSnapshot(forgetful.snapshot().workers).ready(MODEL)


TestTwoRegistries = TwoRegistries.TestCase
