"""Published KV events, over real ZeroMQ sockets: vLLM's words out of our engine, and into an index."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec
import pytest
import zmq
import zmq.asyncio

from atomesh.engine.core.prefix_cache import PrefixCache
from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.engine.publishing import publishing
from atomesh.engine.zmq_publisher import PublisherAddress
from atomesh.errors import ConfigurationError
from atomesh.mesh.backends import zmq_events
from atomesh.mesh.backends.event_source import EventSource
from atomesh.mesh.backends.zmq_events import ZmqSubscriber
from atomesh.mesh.kv_index.foreign import PIECE, Translator
from atomesh.mesh.kv_index.foreign_order import ForeignFeed
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.protocol.block_hash import BlockHash, model_hasher
from atomesh.protocol.vllm_kv_events import MAX_BATCH_BYTES, ForeignStored, encode_batch
from atomesh.testing.scripted_engine import describe

SECRET = b"secret"
PATIENCE_S = 10.0
MODEL = describe(
    SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, block_size=4, num_blocks=64)
)
HASHER = model_hasher(SECRET, MODEL)


@dataclass
class Engine:
    """A prefix cache that is published."""

    address: PublisherAddress

    def __post_init__(self) -> None:
        self.hasher, self.sink = publishing(MODEL, SECRET, self.address)
        self.cache = PrefixCache()

    def caches(self, tokens: list[int], first_block: int, salt: str = "") -> list[BlockHash]:
        chain = self.hasher.chain(tokens, salt)
        for number, one in enumerate(chain):
            self.cache.insert(one, first_block + number, first_block + number - 1 if number else None)
        self.tell()
        return chain

    def tell(self) -> None:
        self.sink.publish(self.cache.journal.take(), lambda: self.cache._block_by_hash)


@dataclass
class Reader:
    index: KVIndex
    feed: ForeignFeed
    subscriber: ZmqSubscriber

    def held(self, tokens: list[int], salt: str = "") -> MatchedBlocks:
        return self.index.match(HASHER.chain(tokens, salt), 0.0).get("w", MatchedBlocks())


def reader(address: PublisherAddress) -> Reader:
    index = KVIndex()
    index.join("w")
    feed = ForeignFeed(index, "w", Translator(HASHER))
    source = EventSource(address.events, address.replay)
    return Reader(index, feed, ZmqSubscriber(source, feed, index.counts, lambda: None))


@pytest.fixture
def address(tmp_path: object) -> PublisherAddress:
    return PublisherAddress(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")


@pytest.fixture
def engine(address: PublisherAddress) -> Iterator[Engine]:
    made = Engine(address)
    yield made
    made.sink.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  what changes it comes over a socket
            await asyncio.sleep(0.005)


async def until_heard(engine: Engine, one: Reader, first_block: int = 40) -> None:
    """A subscription takes a moment to be in force: say something until it is heard."""
    engine.caches([900, 900, 900, 900], first_block)
    block = first_block
    async with asyncio.timeout(PATIENCE_S):
        while one.feed._next == 0:
            block += 1
            engine.caches([block] * 4, block)
            await asyncio.sleep(0.01)


def test_what_our_engine_publishes_is_found_by_its_tokens_and_salt(engine: Engine) -> None:
    async def scenario() -> None:
        one = reader(engine.address)
        running = asyncio.create_task(one.subscriber.run())
        await until_heard(engine, one)
        engine.caches(list(range(12)), 0)
        engine.caches(list(range(8)), 4, salt="tenant")
        await until(lambda: one.held(list(range(8)), "tenant") == MatchedBlocks(2))
        assert one.held(list(range(12))) == MatchedBlocks(3)
        assert one.held(list(range(12)), "tenant") == MatchedBlocks(2)
        engine.cache.forget(2)
        engine.tell()
        await until(lambda: one.held(list(range(12))) == MatchedBlocks(2))
        assert (one.subscriber.malformed, one.feed.losses) == (0, 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_who_comes_late_has_the_beginning_replayed(engine: Engine) -> None:
    engine.caches(list(range(12)), 0)

    async def scenario() -> None:
        one = reader(engine.address)
        running = asyncio.create_task(one.subscriber.run())
        await until_heard(engine, one)
        await until(lambda: one.held(list(range(12))) == MatchedBlocks(3))
        assert one.feed.losses == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_who_comes_late_to_a_silent_engine_has_all_replayed_at_once(engine: Engine) -> None:
    engine.caches(list(range(12)), 0)

    async def scenario() -> None:
        one = reader(engine.address)
        running = asyncio.create_task(one.subscriber.run())
        await until(lambda: one.held(list(range(12))) == MatchedBlocks(3))
        assert (one.index.counts.replays, one.index.counts.gaps, one.feed.losses) == (1, 0, 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_the_last_batch_before_a_silence_is_asked_for_if_it_was_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_events, "QUIET_S", 0.05)
    deaf = replace(engine.address, events="ipc:///nobody/is/there")

    async def scenario() -> None:
        one = reader(deaf)
        running = asyncio.create_task(one.subscriber.run())
        await until(lambda: one.index.counts.replays)
        engine.caches(list(range(12)), 0)
        await until(lambda: one.held(list(range(12))) == MatchedBlocks(3))
        assert one.feed.losses == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize("topic", [(), (b"kv@pod",)], ids=["older", "vllm-0.32"])
def test_a_replay_is_read_with_its_topic_and_without(
    address: PublisherAddress, topic: tuple[bytes, ...]
) -> None:
    stored = ForeignStored([7], [1, 2, 3, 4], 4, medium="GPU", extra_keys=[None])

    async def scenario() -> None:
        one = reader(address)
        with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as socket:
            assert address.replay is not None
            socket.bind(address.replay)
            running = asyncio.create_task(one.subscriber.run())
            peer, _, first = await asyncio.wait_for(socket.recv_multipart(), PATIENCE_S)
            assert first == bytes(8)
            await socket.send_multipart([peer, b"", *topic, bytes(8), encode_batch(1.0, [stored])])
            await socket.send_multipart([peer, b"", *(b"" for _ in topic), b"\xff" * 8, b""])
            await until(lambda: one.feed.next_sequence == 1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert one.held([1, 2, 3, 4]) == MatchedBlocks(1)

    asyncio.run(scenario())


def test_a_publisher_that_comes_back_is_heard_again_and_its_former_life_forgotten(
    address: PublisherAddress,
) -> None:
    former, later = list(range(12)), list(range(50, 58))

    async def scenario() -> None:
        engine, one = Engine(address), reader(address)
        running = asyncio.create_task(one.subscriber.run())
        engine.caches(former, 0)
        engine.caches([90] * 4, 3)
        await until(lambda: one.held(former) == MatchedBlocks(3))
        await until(lambda: one.feed.next_sequence == 2)
        engine.sink.close()

        again = Engine(address)
        again.caches(later, 0)
        block = 10
        async with asyncio.timeout(PATIENCE_S):
            while one.held(later) != MatchedBlocks(2):
                block += 1
                again.caches([block] * 4, block)
                await asyncio.sleep(0.02)
        assert one.held(former) == MatchedBlocks()
        assert one.feed.losses == one.index.counts.losses == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        again.sink.close()

    asyncio.run(scenario())


def test_garbage_is_counted_and_what_follows_is_heard(address: PublisherAddress) -> None:
    async def scenario() -> None:
        one = reader(PublisherAddress(address.events))
        running = asyncio.create_task(one.subscriber.run())
        with zmq.Context() as context, context.socket(zmq.PUB) as socket:
            socket.bind(address.events)
            async with asyncio.timeout(PATIENCE_S):
                while one.subscriber.malformed < 3:
                    for garbage in ([b"", b"short", b""], [b"", bytes(8), b"\xc1"], [b"alone"]):
                        socket.send_multipart(garbage)
                    await asyncio.sleep(0.01)
            cleared = msgspec.msgpack.encode([1.0, [{"type": "AllBlocksCleared"}], 0])
            socket.send_multipart([b"", bytes(8), cleared])
            await until(lambda: one.feed._next == 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_a_message_beyond_the_limit_is_not_read_and_what_follows_is(address: PublisherAddress) -> None:
    async def scenario() -> None:
        one = reader(PublisherAddress(address.events))
        running = asyncio.create_task(one.subscriber.run())
        packed = msgspec.msgpack.encode
        large = packed([1.0, [{"type": "AllBlocksCleared", "filling": bytes(MAX_BATCH_BYTES)}], 0])
        with zmq.Context() as context, context.socket(zmq.PUB) as socket:
            socket.bind(address.events)
            async with asyncio.timeout(PATIENCE_S):
                while not one.feed.next_sequence:
                    socket.send_multipart([b"", bytes(8), packed([1.0, [], 0])])
                    await asyncio.sleep(0.01)
                socket.send_multipart([b"", (1).to_bytes(8, "big"), large])
                while one.feed.next_sequence != 3:
                    socket.send_multipart([b"", (2).to_bytes(8, "big"), packed([2.0, [], 0])])
                    await asyncio.sleep(0.05)
        assert (one.subscriber.malformed, one.feed.losses) == (1, 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_others_have_their_turns_while_a_large_batch_is_read(address: PublisherAddress) -> None:
    async def scenario() -> None:
        one = reader(PublisherAddress(address.events))
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += bool(one.feed.next_sequence)
                await asyncio.sleep(0)

        running = [asyncio.create_task(one.subscriber.run()), asyncio.create_task(count_turns())]
        tokens = list(range(16 * PIECE))
        event = [
            "BlockStored",
            list(range(4 * PIECE)),
            None,
            tokens,
            4,
            None,
            "GPU",
            None,
            [None] * 4 * PIECE,
        ]
        payload = msgspec.msgpack.encode([1.0, [event], 0])
        with zmq.Context() as context, context.socket(zmq.PUB) as socket:
            socket.bind(address.events)
            async with asyncio.timeout(PATIENCE_S):
                while not one.feed.next_sequence:
                    socket.send_multipart([b"", bytes(8), payload])
                    await asyncio.sleep(0.05)
            await until(lambda: len(one.index) == 4 * PIECE)
        assert turns >= 15
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(scenario())


def test_replay_speaks_as_vllm_does(engine: Engine) -> None:
    engine.caches(list(range(4)), 0)
    engine.caches(list(range(50, 54)), 1)
    assert engine.address.replay is not None
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(engine.address.replay)
        socket.send_multipart([b"", b"nonsense, which is not answered"])
        socket.send_multipart([b"", (1).to_bytes(8, "big")])
        empty, topic, sequence, payload = socket.recv_multipart()
        assert (empty, topic, sequence) == (b"", b"", (1).to_bytes(8, "big"))
        _, [event], _ = msgspec.msgpack.decode(payload)
        assert (event["type"], event["token_ids"], event["block_size"]) == (
            "BlockStored",
            [50, 51, 52, 53],
            4,
        )
        assert socket.recv_multipart() == [b"", b"", (-1).to_bytes(8, "big", signed=True), b""]


def test_an_endpoint_that_cannot_be_had_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match=r"give an endpoint like tcp://127\.0\.0\.1:5557"):
        Engine(PublisherAddress("nowhere"))


def test_without_pyzmq_it_says_what_to_install(
    address: PublisherAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)

    with pytest.raises(ConfigurationError, match=r"atomesh\[zmq\]"):
        Engine(address)
    with pytest.raises(ConfigurationError, match=r"atomesh\[zmq\]"):
        reader(address)
