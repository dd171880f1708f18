"""A prefix goes from one real worker's cache to another; what comes of it is what one worker alone says."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from atomesh.clock import MonotonicClock
from atomesh.engine.build import build_engine
from atomesh.engine.engine import Engine
from atomesh.engine.options import EngineOptions
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.generation import GenerationRequest, PrefixFetch, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.handoff_pair import SECRET, HandoffPair, HandoffWorker, handoff_pair
from atomesh.testing.served_process import wait_for
from atomesh.testing.tiny_model import write_tiny_model

BLOCK = 32
LENGTH = 9 * BLOCK + 5
OPTIONS = EngineOptions(
    dtype="float32", kv_memory=2 * 2**20, max_model_len=512, max_num_batched_tokens=64, threads=1
)
PROMPT = [3 + 7 * position % 200 for position in range(LENGTH)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[Engine]:
    engine = build_engine(
        open_checkpoint(model), OPTIONS, secret=SECRET, served_name="tiny", clock=MonotonicClock()
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=["shm", "tcp"])
def running(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("kv")
    listen = ("127.0.0.1:0", "127.0.0.1:0")
    if request.param == "shm":
        listen = (f"unix:{directory}/x", f"unix:{directory}/y")
    with handoff_pair(model, listen, OPTIONS) as pair:
        yield pair


@pytest.fixture
def pair(running: HandoffPair) -> Iterator[HandoffPair]:
    """As new before and after each test: no block with anybody, no prefix kept."""
    for worker in (running.prefill, running.decode):
        worker.loop.reset_prefix_cache()
    yield running
    for worker in (running.prefill, running.decode):
        wait_for(worker.is_idle)
        assert worker.inspect().states["held"] == 0


def request_of(name: str, n: int = 1, **fields: object) -> GenerationRequest:
    spec = SamplingSpec(seed=7, max_tokens=12, temperature=0.0 if n == 1 else 1.0)
    return GenerationRequest(request_id=name, prompt_token_ids=PROMPT, sampling=spec, n=n, **fields)


def serve(worker: HandoffWorker, request: GenerationRequest) -> list[TokenDelta]:
    mailbox, name = worker.mailbox, request.request_id
    worker.loop.submit(mailbox, request)
    mailbox.wait_for(
        lambda: sum(one.finish_reason is not None for one in mailbox.deltas.get(name, ())) == request.n
    )
    return mailbox.deltas.pop(name)


def serve_alone(engine: Engine, request: GenerationRequest) -> list[TokenDelta]:
    engine.add(request)
    deltas: list[TokenDelta] = []
    while engine.has_work():
        deltas += engine.step()
    return deltas


def fetching(
    pair: HandoffPair, request: GenerationRequest, num_tokens: int = 9 * BLOCK, patience_s: float = 5.0
) -> GenerationRequest:
    fetch = PrefixFetch(
        ticket=pair.ticket(request.request_id),
        address=pair.prefill.kv_address,
        num_tokens=num_tokens,
        patience_s=patience_s,
    )
    return replace(request, fetch=fetch)


def tokens(deltas: list[TokenDelta]) -> dict[int, list[int]]:
    assert [delta.error for delta in deltas if delta.error is not None] == []
    spoken: dict[int, list[int]] = {}
    for delta in deltas:
        spoken.setdefault(delta.choice, []).extend(delta.token_ids)
    return spoken


def outcomes(worker: HandoffWorker, half: str) -> dict[str, int]:
    counted = worker.loop.load.kv_transfers
    return {name: number for name, number in counted.items() if name.startswith(half)}


def gained(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    found = {name: number - before.get(name, 0) for name, number in after.items()}
    return {name: number for name, number in found.items() if number}


@pytest.mark.parametrize("n", [1, 3])
def test_what_is_fetched_is_as_good_as_computed(pair: HandoffPair, alone: Engine, n: int) -> None:
    request = request_of(f"a{n}", n)
    wanted = tokens(serve_alone(alone, request))
    before = outcomes(pair.decode, "fetched")
    serve(pair.prefill, request_of("warm"))
    deltas = serve(pair.decode, fetching(pair, request))
    assert tokens(deltas) == wanted
    assert [delta.cached_tokens for delta in deltas if delta.cached_tokens is not None] == [9 * BLOCK]
    assert gained(before, outcomes(pair.decode, "fetched")) == {"fetched_complete": 1}
    [timings] = [delta.timings for delta in deltas if delta.timings is not None]
    assert 0.0 < timings.transfer_s < 5.0


def test_the_bytes_and_seconds_of_it_are_told_to_the_cost_model(pair: HandoffPair) -> None:
    samples = pair.decode.mailbox.transfers
    samples.clear()
    pair.decode.loop.follow(pair.decode.mailbox)
    serve(pair.prefill, request_of("warm"))
    serve(pair.decode, fetching(pair, request_of("b")))
    pair.decode.mailbox.wait_for(lambda: bool(samples))
    [sample] = samples
    assert sample.peer_incarnation == pair.prefill.incarnation
    layout = pair.decode.made.kv_layout
    assert layout is not None
    assert sample.num_bytes == 9 * layout.block_bytes
    assert 0.0 < sample.seconds < 5.0


def test_blocks_that_are_gone_are_computed_without_waiting(pair: HandoffPair, alone: Engine) -> None:
    request = request_of("c")
    before = outcomes(pair.decode, "fetched")
    deltas = serve(pair.decode, fetching(pair, request, patience_s=60.0))
    assert tokens(deltas) == tokens(serve_alone(alone, request))
    assert gained(before, outcomes(pair.decode, "fetched")) == {"fetched_refused_gone": 1}
    assert deltas[0].cached_tokens == 0


@pytest.mark.parametrize("point", ["kv_drop_push", "kv_partial_push", "kv_flip_bit"])
def test_what_comes_late_in_part_or_damaged_is_computed(pair: HandoffPair, alone: Engine, point: str) -> None:
    if point == "kv_flip_bit" and pair.prefill.kv_address.startswith("unix:"):
        pytest.skip("shared memory has no wire")
    request = request_of(f"d {point}")
    before = outcomes(pair.decode, "fetched")
    serve(pair.prefill, request_of("warm"))
    pair.prefill.faults.arm(point)
    deltas = serve(pair.decode, fetching(pair, request, patience_s=0.3))
    assert tokens(deltas) == tokens(serve_alone(alone, request))
    [outcome] = gained(before, outcomes(pair.decode, "fetched"))
    assert outcome == ("fetched_damaged" if point == "kv_flip_bit" else "fetched_late")


def test_a_borrower_that_leaves_gets_all_blocks_back_on_both_sides(pair: HandoffPair) -> None:
    serve(pair.prefill, request_of("warm"))
    pair.prefill.faults.arm("kv_delay_push", 1, 0.4)
    before = outcomes(pair.decode, "fetched")
    pair.decode.loop.submit(pair.decode.mailbox, fetching(pair, request_of("e")))
    wait_for(lambda: pair.decode.inspect().states["reserved"] == 9)
    assert sum(pair.prefill.inspect().owners.values()) == 9
    pair.decode.loop.abort(pair.decode.mailbox, "e")
    wait_for(pair.decode.is_idle)
    assert gained(before, outcomes(pair.decode, "fetched")) == {"fetched_aborted": 1}


def test_another_salt_finds_nothing_to_fetch(pair: HandoffPair, alone: Engine) -> None:
    serve(pair.prefill, request_of("warm"))
    request = request_of("f", cache_salt="another tenant's")
    before = outcomes(pair.decode, "fetched")
    deltas = serve(pair.decode, fetching(pair, request))
    assert tokens(deltas) == tokens(serve_alone(alone, request))
    assert gained(before, outcomes(pair.decode, "fetched")) == {"fetched_refused_gone": 1}
