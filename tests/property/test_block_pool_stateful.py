"""The block pool conserves blocks whatever is asked of it, and forgets in the order of a plain model."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomesh.engine.core.block_pool import BlockPool
from atomesh.engine.core.prefix_cache import PrefixCache
from atomesh.protocol.block_hash import BlockHash

NUM_BLOCKS = 6


class BlockPoolMachine(RuleBasedStateMachine):
    """The model: who holds what, which blocks are registered, and the idle ones from oldest to newest.

    Beside them, the blocks that a peer may write to: those it has leave for, and those it had.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache()
        self.pool = BlockPool(NUM_BLOCKS, self.cache)
        self.holds: list[int] = []
        self.registered: set[int] = set()
        self.idle: list[int] = []
        self.reserved: list[int] = []
        self.quarantined: list[int] = []
        self.num_hashes = 0

    @precondition(lambda self: self.pool.num_available)
    @rule()
    def take(self) -> None:
        expected = None if self.pool.num_free else self.idle.pop(0)
        block = self.pool.take()
        assert expected in (None, block)
        assert block not in self.holds
        self.registered.discard(block)
        self.holds.append(block)

    @precondition(lambda self: self.pool.num_available)
    @rule()
    def reserve(self) -> None:
        expected = None if self.pool.num_free else self.idle.pop(0)
        block = self.pool.reserve()
        assert expected in (None, block)
        assert block not in (*self.holds, *self.reserved, *self.quarantined)
        self.registered.discard(block)
        self.reserved.append(block)

    @precondition(lambda self: self.reserved)
    @rule()
    def fill(self) -> None:
        block = self.reserved.pop()
        self.pool.fill(block)
        self.holds.append(block)

    @precondition(lambda self: self.reserved)
    @rule()
    def quarantine(self) -> None:
        self.pool.quarantine(self.reserved)
        self.quarantined += self.reserved
        self.reserved = []

    @precondition(lambda self: self.quarantined)
    @rule()
    def lift(self) -> None:
        self.pool.lift([self.quarantined.pop()])

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.holds))
        self.pool.hold(block)
        self.holds.append(block)

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.idle))
        self.pool.hold(block)
        self.idle.remove(block)
        self.holds.append(block)

    @precondition(lambda self: set(self.holds) - self.registered)
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(set(self.holds) - self.registered)))
        self.num_hashes += 1
        self.cache.insert(BlockHash(self.num_hashes.to_bytes(16, "little")), block)
        self.registered.add(block)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        chain = data.draw(st.lists(st.sampled_from(sorted(set(self.holds))), unique=True, min_size=1))
        self.pool.release(chain)
        for block in reversed(chain):
            self.holds.remove(block)
            if block not in self.holds and block in self.registered:
                self.idle.append(block)

    @rule()
    def forget_idle(self) -> None:
        self.pool.forget_idle()
        self.registered -= set(self.idle)
        self.idle.clear()

    @invariant()
    def blocks_are_conserved(self) -> None:
        self.pool.check_invariants()
        assert self.pool.num_idle == len(self.idle)
        others = (len(self.reserved), len(self.quarantined))
        assert (self.pool.num_reserved, self.pool.num_quarantined) == others
        assert (self.pool.num_held, self.pool.num_references) == (len(set(self.holds)), len(self.holds))
        assert self.pool.num_counted == NUM_BLOCKS
        assert self.pool.num_available == NUM_BLOCKS - len(set(self.holds)) - sum(others)
        assert all(self.pool.references(block) == self.holds.count(block) for block in range(NUM_BLOCKS))


TestBlockPool = BlockPoolMachine.TestCase
