"""Engines that are not ours and publish what they cache: what the gateway then knows, and where it sends."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from atomesh.clock import MonotonicClock
from atomesh.errors import ConfigurationError
from atomesh.mesh.backends.context import LocalModel
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.gateway.app import Gateway, GatewayOptions
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.protocol.block_hash import BlockHash, model_hasher
from atomesh.testing.byte_tokenizer import END, ByteTokenizer
from atomesh.testing.fake_engine_server import FakeEngineServer, Speech
from atomesh.testing.fake_sglang_server import FakeSglangServer
from atomesh.testing.fake_vllm_server import FakeVllmServer
from atomesh.testing.foreign_kv_cache import ForeignKVCache
from atomesh.testing.gateway_server import GatewayServer, byte_text, gateway_server

SECRET = b"s" * 32
LETTERS = "lab/letters"
FILES = LocalModel(LETTERS, "", "LlamaForCausalLM", ByteTokenizer.vocab_size, (END,))
PROMPT = [65 + n % 26 for n in range(64)]
PATIENCE_S = 10.0


@dataclass
class Lab:
    """Engines with their caches, in the order of their URLs, behind a gateway."""

    servers: list[FakeEngineServer] = field(default_factory=list)
    caches: list[ForeignKVCache] = field(default_factory=list)
    gateway: GatewayServer | None = None

    async def ask(self, prompt: list[int] = PROMPT, **fields: Any) -> dict[str, Any]:
        """The only attempt, as x-explain tells it, with `measured` beside it."""
        assert self.gateway is not None
        body = {"model": LETTERS, "prompt": prompt, "max_tokens": 3, **fields}
        reply = await self.gateway.ask("POST", "/v1/completions", body, x_explain="1")
        assert reply.status == 200, reply.body
        [request] = reply.body["explain"]["requests"]
        [attempt] = request["attempts"]
        return {**attempt, "measured": request["measured"]}

    def held(self, number: int, prompt: list[int] = PROMPT, salt: str = "") -> MatchedBlocks:
        """Of the prompt, as far as the gateway knows, by the engine of this number."""
        assert self.gateway is not None
        gateway = self.gateway.gateway
        description = gateway.registry.description(self.servers[number].url)
        if description is None:
            return MatchedBlocks()
        chain = list[BlockHash](model_hasher(SECRET, description.model).chain(prompt, salt))
        index = gateway._shared.knowledge.index
        return index.match(chain, MonotonicClock().now()).get(description.incarnation, MatchedBlocks())

    async def until_held(self, number: int, blocks: int, prompt: list[int] = PROMPT, salt: str = "") -> None:
        await self.servers[number].until(lambda: self.held(number, prompt, salt) == MatchedBlocks(blocks))

    async def until_ready(self, number: int, since: str | None = None) -> str:
        """The incarnation there, once it is another than `since`."""
        assert self.gateway is not None
        registry, url = self.gateway.gateway.registry, self.servers[number].url

        def is_there() -> bool:
            [worker] = [one for one in registry.snapshot().workers if one.address == url]
            return worker.state == "ready" and registry.incarnation(url) != since

        await self.servers[number].until(is_there)
        incarnation = registry.incarnation(url)
        assert incarnation is not None
        return incarnation


def answer_from(server: FakeEngineServer, cache: ForeignKVCache | None) -> None:
    """The engine's answers come with what its cache held, and fill it."""
    pending: list[asyncio.Task[None]] = []

    def speech(body: dict[str, Any]) -> Speech:
        hit = 0
        if cache is not None:
            prompt, salt = body.get("prompt") or body["input_ids"], body.get("cache_salt") or ""
            hit = cache.hit(prompt, salt)
            pending.append(asyncio.create_task(cache.serve(prompt, salt)))
        return Speech([72, 73, END], finish="stop", stop_token=END, cached=hit)

    server.speech = speech


@asynccontextmanager
async def lab(*caches: ForeignKVCache | None, kind: str = "vllm") -> AsyncIterator[Lab]:
    """An engine of this kind for each cache; one that publishes nothing for None."""
    made = Lab()
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        specs: list[BackendSpec] = []
        for cache in caches:
            server: FakeEngineServer = (FakeVllmServer if kind == "vllm" else FakeSglangServer)(LETTERS)
            made.servers.append(await stack.enter_async_context(server))
            source = None
            if cache is not None:
                made.caches.append(await stack.enter_async_context(cache))
                source = cache.source
            answer_from(server, cache)
            specs.append(BackendSpec(server.url, kind, events=source))
        options = GatewayOptions(
            workers=(),
            secret=SECRET,
            admin_token="admin",
            engines=tuple(specs),
            find_model=lambda name: FILES if name == LETTERS else None,
        )
        made.gateway = await stack.enter_async_context(gateway_server(options))
        await made.gateway.until(200)
        for number in range(len(caches)):
            await made.until_ready(number)
        for cache in made.caches:
            await cache.until_subscribed()
        yield made


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await scenario()

    asyncio.run(whole())


@pytest.mark.parametrize("number", [0, 1])
def test_a_prompt_goes_to_the_engine_that_said_it_holds_it(number: int) -> None:
    async def scenario() -> None:
        async with lab(ForeignKVCache(), ForeignKVCache()) as made:
            await made.caches[number].serve(PROMPT)  # for somebody else than this gateway
            await made.until_held(number, 4)

            attempt = await made.ask()
            assert attempt["chosen"]["prefill"] == made.servers[number].url
            assert (attempt["predicted"]["cached_tokens"], attempt["measured"]["cached_tokens"]) == (63, 64)
            assert len(made.servers[number].bodies) == 1

    run(scenario)


def test_evicted_and_cleared_blocks_are_not_counted_on() -> None:
    async def scenario() -> None:
        async with lab(ForeignKVCache(), ForeignKVCache()) as made:
            await made.caches[1].serve(PROMPT)
            await made.until_held(1, 4)
            await made.caches[1].evict(PROMPT, 3)
            await made.until_held(1, 1)
            assert (await made.ask())["predicted"]["cached_tokens"] == 16
            await made.caches[1].clear()
            await made.until_held(1, 0)

    run(scenario)


def test_missed_batches_are_replayed() -> None:
    async def scenario() -> None:
        async with lab(ForeignKVCache()) as made:
            [cache] = made.caches
            await cache.serve(PROMPT[:16])
            await made.until_held(0, 1)
            cache.is_mute = True
            await cache.serve(PROMPT[:48])
            cache.is_mute = False
            await cache.serve(PROMPT)
            await made.until_held(0, 4)

    run(scenario)


def test_without_a_replay_a_gap_costs_what_was_known_and_it_learns_anew() -> None:
    other = [50] * 32

    async def scenario() -> None:
        async with lab(ForeignKVCache(replays=False)) as made:
            [cache] = made.caches
            await cache.serve(PROMPT)
            await made.until_held(0, 4)
            cache.is_mute = True
            await cache.evict(PROMPT, 4)
            cache.is_mute = False
            await cache.serve(other)
            await made.until_held(0, 2, other)
            assert made.held(0) == MatchedBlocks()

    run(scenario)


def test_an_engine_s_next_life_holds_nothing_and_is_heard_from_its_beginning() -> None:
    other = [50] * 32

    async def scenario() -> None:
        async with lab(ForeignKVCache()) as made:
            [cache], [server] = made.caches, made.servers
            await cache.serve(PROMPT)
            await made.until_held(0, 4)
            before = await made.until_ready(0)
            assert isinstance(server, FakeVllmServer)
            cache.restart()
            server.started_at += 60.0
            await made.until_ready(0, since=before)
            assert made.held(0) == MatchedBlocks()
            await cache.serve(other)
            await made.until_held(0, 2, other)
            assert made.held(0) == MatchedBlocks()

    run(scenario)


def test_a_gateway_that_comes_late_learns_all_that_is_kept() -> None:
    async def scenario() -> None:
        cache = ForeignKVCache()
        await cache.keep(PROMPT)
        async with lab(cache) as made:
            await made.until_held(0, 4)

    run(scenario)


def test_without_events_it_is_guessed_from_what_was_sent() -> None:
    async def scenario() -> None:
        async with lab(None, None) as made:
            first = await made.ask()
            again = await made.ask()
            assert (first["predicted"]["cached_tokens"], again["predicted"]["cached_tokens"]) == (0, 63)
            assert again["chosen"]["prefill"] == first["chosen"]["prefill"]

    run(scenario)


def test_salted_blocks_are_found_under_their_salt_alone() -> None:
    async def scenario() -> None:
        async with lab(ForeignKVCache()) as made:
            await made.caches[0].serve(PROMPT, "tenant")
            await made.until_held(0, 4, salt="tenant")
            assert made.held(0) == MatchedBlocks()
            assert (await made.ask(cache_salt="other"))["predicted"]["cached_tokens"] == 0

    run(scenario)


def test_a_removed_back_end_leaves_nothing_in_the_index() -> None:
    async def scenario() -> None:
        async with lab(ForeignKVCache()) as made:
            await made.caches[0].serve(PROMPT)
            await made.until_held(0, 4)
            assert made.gateway is not None
            gateway = made.gateway.gateway
            gateway._backends.remove(made.servers[0].url)
            index = gateway._shared.knowledge.index
            await made.servers[0].until(lambda: not index.exact.blocks_by_worker())
            await made.caches[0].serve([50] * 32)
            assert index.exact.blocks_by_worker() == index.approximate.blocks_by_worker() == {}

    run(scenario)


def test_sglang_s_pages_of_one_token_make_blocks_of_ours() -> None:
    async def scenario() -> None:
        async with lab(
            ForeignKVCache(1, is_sglang=True), ForeignKVCache(1, is_sglang=True), kind="sglang"
        ) as made:
            await made.caches[1].serve(PROMPT[:40])
            await made.until_held(1, 2)
            attempt = await made.ask()
            assert attempt["chosen"]["prefill"] == made.servers[1].url
            assert (attempt["predicted"]["cached_tokens"], attempt["measured"]["cached_tokens"]) == (32, 40)
            await made.until_held(1, 4)
            await made.caches[1].evict(PROMPT, 1)
            await made.until_held(1, 3)

    run(scenario)


def test_events_that_do_not_say_their_salt_leave_the_engine_to_guessing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = ForeignKVCache(1, is_sglang=True, is_sure=False)

    async def scenario() -> None:
        async with lab(cache, kind="sglang") as made:
            await made.ask()
            await made.servers[0].until(lambda: "salts=none" in caplog.text)
            assert (await made.ask())["predicted"]["cached_tokens"] == 63

    run(scenario)
    assert caplog.text.count("salts=none") == 1


def test_without_pyzmq_the_gateway_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    source = ForeignKVCache().source
    options = GatewayOptions(
        workers=(),
        secret=SECRET,
        admin_token="admin",
        engines=(BackendSpec("http://h", "vllm", events=source),),
    )

    with pytest.raises(ConfigurationError, match=r"pip install 'atomesh\[zmq\]'"):
        Gateway(options, byte_text, MonotonicClock())
