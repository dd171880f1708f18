"""The conversation trace, live, through routers of others and our gateway, before the same mock engines.

The engines simulate a prefix cache and the time of prefill, so that what placement makes of a prompt's prefix
shows in hits and in the TTFT. `python benchmarks/routing.py --help`
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from gateway_load import LoadFound
from gateway_peers import ROUTERS, Start, atomesh, child, make_routers, router, router_versions, running
from gateway_report import OURS
from gateway_text import TextSide, body_of
from machine import describe_machine
from mock_dialect import MODEL
from results_page import publish
from revision import commit
from routing_engine import EngineFigures, shared_hit_rate
from routing_load import ArrivalPlan
from routing_mock import RoutingPlan
from routing_report import Report, RoutingFound, Setting
from routing_trace import Chat, read_chats

from atomesh.cli import environment
from atomesh.cli.core_shares import usable_cores
from atomesh.cli.process import end_on_sigterm
from atomesh.errors import AtomeshError
from atomesh.model_files.catalog import DEFAULT_MODEL
from atomesh.model_files.resolve import resolve_model
from atomesh.protocol.block_hash import BlockHasher
from atomesh.testing.served_process import free_port

if TYPE_CHECKING:
    import subprocess

OWNER = "benchmarks/routing.py"
ROOT = Path(__file__).parents[2]
SETTLE_S = 2.0  # between a gateway's start and the load: the routers look at their workers
SGLANG, VLLM = ROUTERS


@dataclass(frozen=True, slots=True)
class Engines:
    """The mock's process; `events` are where the engines publish theirs, by URL."""

    process: "subprocess.Popen[bytes]"
    events: dict[str, str]

    def forget(self) -> list[EngineFigures]:
        """What the engines have counted since they last forgot everything."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the mock engines have died; their last words are above")
        return [EngineFigures(**one) for one in json.loads(line)]


Starter = Callable[[Engines, argparse.Namespace, Path], Start]


def main() -> None:
    options = parse_options()
    end_on_sigterm()
    try:
        report = measure(options)
    except (AtomeshError, RuntimeError, ValueError) as error:
        sys.exit(f"{OWNER}: {error}")
    publish(options, OWNER, report.as_markdown(), report.as_json())


def measure(options: argparse.Namespace) -> Report:
    needs_routers = any(name.startswith(ROUTERS) for name in options.contestants)
    if needs_routers:
        make_routers(options.routers)
    model = resolve_model(options.model, environment.home())
    chats = read_chats(options.trace, options.requests, options.seconds, options.block_words)
    prompts = tokenised(chats, model.path)
    mean_tokens = sum(map(len, prompts)) / len(prompts)
    token_s = options.load * options.seconds * options.engines / (len(prompts) * mean_tokens)
    plan = RoutingPlan(
        model_path=str(model.path.resolve()),
        num_blocks=options.blocks,
        block_size=options.block_size,
        token_s=token_s,
        texts=sorted({chat.text for chat in chats}),
        events=[f"tcp://127.0.0.1:{free_port()}" for _ in range(options.engines)],
    )
    setting = Setting(
        commit=commit(),
        machine=str(describe_machine()),
        trace=options.trace.stem,
        num_requests=len(chats),
        seconds=options.seconds,
        mean_tokens=mean_tokens,
        num_engines=options.engines,
        blocks_per_engine=options.blocks,
        block_size=options.block_size,
        token_s=token_s,
        load=options.load,
        ideal=ideal_hit_rate(prompts, options),
        versions=router_versions(options.routers) if needs_routers else {},
    )
    return Report(setting, measure_all(plan, chats, options))


def tokenised(chats: Sequence[Chat], model: Path) -> list[list[int]]:
    side = TextSide(model)
    try:
        messages = [[{"role": "user", "content": chat.text}] for chat in chats]
        return [side.template.encode(one, side.tokenizer) for one in messages]
    finally:
        side.close()


def ideal_hit_rate(prompts: Sequence[list[int]], options: argparse.Namespace) -> float:
    hasher = BlockHasher(b"", MODEL, options.block_size)
    chains = [(len(prompt), hasher.chain(prompt)) for prompt in prompts]
    return shared_hit_rate(chains, options.blocks * options.engines, options.block_size)


def measure_all(plan: RoutingPlan, chats: Sequence[Chat], options: argparse.Namespace) -> list[RoutingFound]:
    cores = usable_cores()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = stack.enter_context(mock_engines(plan, directory, {cores[-1]}))
        load = stack.enter_context(child("routing_load.py", {cores[-1]}))
        found = []
        for place, name in enumerate(options.contestants):
            start = CONTESTANTS[name](engines, options, directory / str(place))
            note(name)
            with running(start, {cores[0]}, directory / f"{place}.log") as gateway:
                time.sleep(SETTLE_S)
                engines.forget()
                before = gateway.cpu_s()
                answered = send(load, gateway.port, chats)
                cpu_s = gateway.cpu_s() - before
            if answered.failed:
                raise RuntimeError(f"{name} failed: {answered.failed[0]}")
            found.append(RoutingFound(name, engines.forget(), answered.ttfts, cpu_s))
    return found


def send(load: "subprocess.Popen[bytes]", port: int, chats: Sequence[Chat]) -> LoadFound:
    plan = ArrivalPlan(
        port=port,
        at_s=[chat.at_s for chat in chats],
        bodies=[body_of([{"role": "user", "content": chat.text}], MODEL, 1, stream=True) for chat in chats],
    )
    assert load.stdin is not None
    assert load.stdout is not None
    load.stdin.write(msgspec.json.encode(plan) + b"\n")
    load.stdin.flush()
    line = load.stdout.readline()
    if not line:
        raise RuntimeError("the load has died; its last words are above")
    return msgspec.json.decode(line, type=LoadFound)


@contextmanager
def mock_engines(plan: RoutingPlan, directory: Path, cores: set[int]) -> Iterator[Engines]:
    file = directory / "plan.json"
    file.write_bytes(msgspec.json.encode(plan))
    with child("routing_mock.py", cores, str(file)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the mock engines have not started; their last words are above")
        urls = [f"http://127.0.0.1:{port}" for port in json.loads(line)]
        yield Engines(process, dict(zip(urls, plan.events, strict=True)))


def foreign(name: str, policy: str) -> Starter:
    def start(engines: Engines, options: argparse.Namespace, _directory: Path) -> Start:
        return router(name, options.routers, list(engines.events), "--policy", policy)

    return start


def vllm_kv_aware(engines: Engines, options: argparse.Namespace, _directory: Path) -> Start:
    flags = [f"--kv-event-source={url}={events}" for url, events in engines.events.items()]
    flags += ["--kv-event-block-size", str(options.block_size), "--kv-event-model", MODEL]
    return router(VLLM, options.routers, list(engines.events), "--policy", "kv_aware", *flags)


def ours(policy: str, *, hears_events: bool) -> Starter:
    def start(engines: Engines, options: argparse.Namespace, directory: Path) -> Start:
        model = resolve_model(options.model, environment.home()).path.resolve()
        specs = [
            f"--backend={url},kind=vllm,model={model}" + (f",events={events}" if hears_events else "")
            for url, events in engines.events.items()
        ]
        return atomesh(OURS, directory, f"--policy={policy}", *specs)

    return start


CONTESTANTS: dict[str, Starter] = {
    f"{SGLANG}, round_robin": foreign(SGLANG, "round_robin"),
    f"{SGLANG}, cache_aware": foreign(SGLANG, "cache_aware"),
    f"{VLLM}, cache_aware": foreign(VLLM, "cache_aware"),
    f"{VLLM}, kv_aware, events": vllm_kv_aware,
    f"{OURS}, least_work": ours("least_work", hears_events=False),
    f"{OURS}, kv_aware": ours("kv_aware", hears_events=False),
    f"{OURS}, kv_aware, events": ours("kv_aware", hears_events=True),
}


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    trace = ROOT / "shared" / "traces" / "conversation_trace.jsonl"
    parser.add_argument("--trace", type=Path, default=trace, help="Mooncake JSON lines, with hash_ids")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="whose tokenizer and template are used")
    names = tuple(CONTESTANTS)
    parser.add_argument("--contestants", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--routers", type=Path, default=ROOT / "routers-env", help="made if missing")
    parser.add_argument("--requests", type=int, default=800, help="the first of the trace")
    parser.add_argument("--seconds", type=float, default=11.0, help="of a run, into which they are scaled")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=4000, help="of each engine's prefix cache")
    parser.add_argument("--block-size", type=int, default=16, help="tokens")
    parser.add_argument("--block-words", type=int, default=16, help="of a block of 512 tokens of the trace")
    parser.add_argument("--load", type=float, default=0.9, help="1 saturates engines without a cache")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the result into this page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
