"""What a gateway costs: its CPU for a request and for a streamed token, and what it adds to the TTFT.

Ours, in three ways, beside sglang-router, vllm-router, nginx and no gateway at all, before the same mock
engine. Two cores suffice: one for the gateways, one for the engine and the load.
`python benchmarks/gateway.py --help`
"""

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from gateway_load import LoadFound, LoadPlan
from gateway_mock_plan import MockPlan
from gateway_peers import (
    NGINX,
    ROUTERS,
    Gateway,
    Start,
    atomesh,
    child,
    make_routers,
    nginx,
    router,
    router_versions,
    running,
)
from gateway_report import DIRECT, OURS, GatewayFound, LevelFound, Report, Setting
from gateway_text import TextSide, body_of, chats
from machine import describe_machine
from mock_dialect import MODEL
from results_page import publish
from revision import commit

from atomesh.cli import environment
from atomesh.cli.core_shares import usable_cores
from atomesh.cli.process import end_on_sigterm
from atomesh.errors import AtomeshError
from atomesh.model_files.catalog import DEFAULT_MODEL
from atomesh.model_files.resolve import resolve_model

OWNER = "benchmarks/gateway.py"
ROUTERS_ENV = Path(__file__).parents[2] / "routers-env"
OPENAI, VLLM, ATOM = (f"{OURS}, {kind}" for kind in ("openai", "vllm", "atom"))
CONTESTANTS = (DIRECT, NGINX, *ROUTERS, OPENAI, VLLM, ATOM)
SHORT = 2  # tokens of a stream that is sent for its first one alone


class LoadProcess:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def run(self, plan: LoadPlan) -> LoadFound:
        """Raises RuntimeError when the load has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(plan) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load has died; its last words are above")
        return msgspec.json.decode(line, type=LoadFound)


@dataclass(frozen=True, slots=True)
class Bodies:
    """By prompt: one token, and all tokens, not streamed; all tokens, and a few, streamed."""

    single: list[str]
    whole: list[str]
    streamed: list[str]
    short: list[str]


@dataclass(frozen=True, slots=True)
class Bench:
    load: LoadProcess
    bodies: Bodies
    options: argparse.Namespace


def main() -> None:
    options = parse_options()
    end_on_sigterm()
    try:
        report = measure(options)
    except (AtomeshError, RuntimeError, ValueError) as error:
        sys.exit(f"{OWNER}: {error}")
    publish(options, OWNER, report.as_markdown(), report.as_json())


def measure(options: argparse.Namespace) -> Report:
    if set(ROUTERS) & set(options.contestants):
        make_routers(options.routers)
    model = resolve_model(options.model, environment.home())
    side = TextSide(model.path)
    prompts = chats(options.prompts, options.prompt_words, seed=0)
    answer = side.answer(options.tokens)
    text = side.cost(prompts, answer)
    side.close()
    plan = MockPlan(
        texts=answer.texts,
        token_ids=answer.token_ids,
        step_s=options.step_s,
        secret=secrets.token_hex(32),
        model_path=str(model.path.resolve()),
        vocab_size=side.vocab_size,
        eos_token_ids=side.eos_token_ids,
    )
    bodies = Bodies(
        single=[body_of(chat, MODEL, 1, stream=False) for chat in prompts],
        whole=[body_of(chat, MODEL, options.tokens, stream=False) for chat in prompts],
        streamed=[body_of(chat, MODEL, options.tokens, stream=True) for chat in prompts],
        short=[body_of(chat, MODEL, SHORT, stream=True) for chat in prompts],
    )
    found = measure_all(plan, bodies, options)
    setting = Setting(
        commit=commit(),
        machine=str(describe_machine()),
        model=model.name,
        rounds=options.rounds,
        is_pinned=not options.unpinned,
        tokens=options.tokens,
        step_s=options.step_s,
        router_policy=options.router_policy,
        versions=versions(options),
    )
    return Report(setting, found, text)


def measure_all(plan: MockPlan, bodies: Bodies, options: argparse.Namespace) -> list[GatewayFound]:
    front, back = cores_for(options.unpinned)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plan = msgspec.structs.replace(plan, socket=str(directory / "plane"))
        mock_port = stack.enter_context(mock_engine(plan, directory, back))
        load = stack.enter_context(load_process(back))
        gateways = []
        for start in starts(plan, mock_port, directory, options):
            note(f"starting {start.name}")
            log = directory / f"{start.name}.log"
            gateways.append(stack.enter_context(running(start, front, log)))
        if DIRECT in options.contestants:
            gateways.insert(0, Gateway(DIRECT, mock_port))
        bench = Bench(load, bodies, options)
        found = {one.name: GatewayFound(one.name) for one in gateways}
        check_answers(bench, gateways)
        for number in range(options.rounds):
            note(f"round {number + 1} of {options.rounds}")
            for gateway in gateways[number % len(gateways) :] + gateways[: number % len(gateways)]:
                measure_round(bench, gateway, found[gateway.name], number)
        for gateway in gateways:
            found[gateway.name].memory_bytes = gateway.memory_bytes()
    return list(found.values())


def cores_for(unpinned: bool) -> tuple[set[int], set[int]]:
    """The gateways', and the engine's and the load's."""
    cores = usable_cores()
    return (set(cores), set(cores)) if unpinned else ({cores[0]}, {cores[-1]})


def check_answers(bench: Bench, gateways: Sequence[Gateway]) -> None:
    """Everybody warms up, and answers whole: as many tokens as were asked. Raises RuntimeError."""
    wanted = bench.options.tokens
    for gateway in gateways:
        plan = LoadPlan(gateway.port, bench.bodies.streamed, requests=8, clients=8)
        answered = bench.load.run(plan)
        if answered.failed or answered.tokens != 8 * wanted:
            raise RuntimeError(
                f"{gateway.name} has sent {answered.tokens} of {8 * wanted} tokens: {answered.failed}"
            )
        bench.load.run(LoadPlan(gateway.port, bench.bodies.single, requests=50, clients=8))


def measure_round(bench: Bench, gateway: Gateway, found: GatewayFound, number: int) -> None:
    options = bench.options
    first = number * 17
    plan = LoadPlan(gateway.port, bench.bodies.single, options.requests, options.clients, first_body=first)
    cpu_s, answered = counted(bench.load, gateway, plan)
    found.single_s.append(cpu_s / options.requests)
    found.failed += answered.failed
    whole = 2 * options.whole_clients
    plan = LoadPlan(gateway.port, bench.bodies.whole, whole, options.whole_clients, first_body=first)
    cpu_s, answered = counted(bench.load, gateway, plan)
    found.whole_s.append(cpu_s / whole)
    found.failed += answered.failed
    for level in options.levels:
        streams = max(options.waves * level, options.least_streams)
        spread_s = options.tokens * options.step_s if level > 1 else 0.0
        plan = LoadPlan(gateway.port, bench.bodies.streamed, streams, level, spread_s, first)
        cpu_s, answered = counted(bench.load, gateway, plan)
        kept = found.levels.setdefault(level, LevelFound())
        kept.cpu_s.append(cpu_s / streams)
        kept.ttfts += answered.ttfts
        kept.durations += answered.durations
        found.failed += answered.failed
        if level == 1:
            plan = LoadPlan(gateway.port, bench.bodies.short, options.short_streams, 1, first_body=first)
            kept.ttfts += bench.load.run(plan).ttfts
    if found.failed:
        raise RuntimeError(f"{gateway.name} failed: {found.failed[0]}")


def counted(load: LoadProcess, gateway: Gateway, plan: LoadPlan) -> tuple[float, LoadFound]:
    """The gateway's CPU seconds while the load ran."""
    before = gateway.cpu_s()
    found = load.run(plan)
    return gateway.cpu_s() - before, found


def starts(plan: MockPlan, mock_port: int, directory: Path, options: argparse.Namespace) -> Iterator[Start]:
    """The chosen gateways; nginx only where it is installed."""
    url = f"http://127.0.0.1:{mock_port}"
    chosen = options.contestants
    if NGINX in chosen:
        proxy = nginx([url], directory / "nginx")
        if proxy is None:
            note("nginx is not installed, and left out")
        else:
            yield proxy
    for name in ROUTERS:
        if name in chosen:
            yield router(name, options.routers, [url], "--policy", options.router_policy)
    secret = directory / "secret"
    secret.write_text(plan.secret)
    secret.chmod(0o600)
    ours = {
        OPENAI: [f"--backend={url},kind=openai"],
        VLLM: [f"--backend={url},kind=vllm,model={plan.model_path}"],
        ATOM: [f"--worker=unix:{plan.socket}", f"--secret-file={secret}"],
    }
    for place, (name, flags) in enumerate(ours.items()):
        if name in chosen:
            yield atomesh(name, directory / f"home{place}", *flags)


@contextmanager
def mock_engine(plan: MockPlan, directory: Path, cores: set[int]) -> Iterator[int]:
    """The port at which it speaks HTTP."""
    file = directory / "plan.json"
    file.write_bytes(msgspec.json.encode(plan))
    with child("gateway_mock.py", cores, str(file)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the mock engine has not started; its last words are above")
        yield int(json.loads(line)["port"])


@contextmanager
def load_process(cores: set[int]) -> Iterator[LoadProcess]:
    with child("gateway_load.py", cores) as process:
        yield LoadProcess(process)


def versions(options: argparse.Namespace) -> dict[str, str]:
    known = router_versions(options.routers) if set(ROUTERS) & set(options.contestants) else {}
    found = {name: version for name, version in known.items() if name in options.contestants}
    if NGINX in options.contestants:
        found |= nginx_version()
    return found


def nginx_version() -> dict[str, str]:
    try:
        answer = subprocess.run([NGINX, "-v"], capture_output=True, text=True, check=True)
    except OSError:
        return {}
    return {NGINX: answer.stderr.rpartition("/")[2].strip()}


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="whose tokenizer and template our gateway uses"
    )
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, metavar="NAME")
    parser.add_argument("--routers", type=Path, default=ROUTERS_ENV, metavar="DIR", help="made if missing")
    parser.add_argument("--router-policy", default="cache_aware", help="of both routers; it is their default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 32, 256], help="streams at once")
    parser.add_argument("--waves", type=int, default=2, help="streams of each client in a round")
    parser.add_argument("--least-streams", type=int, default=2, help="of a round at any level")
    parser.add_argument("--short-streams", type=int, default=100, help="for the TTFT of one stream at once")
    parser.add_argument("--requests", type=int, default=1000, help="of one token, of a round")
    parser.add_argument("--clients", type=int, default=8, help="that send them")
    parser.add_argument("--whole-clients", type=int, default=32, help="that send whole answers, not streamed")
    parser.add_argument("--tokens", type=int, default=100, help="of an answer")
    parser.add_argument("--step-s", type=float, default=0.01, help="between two tokens")
    parser.add_argument("--prompts", type=int, default=128, help="different ones")
    parser.add_argument("--prompt-words", type=int, default=200)
    parser.add_argument("--unpinned", action="store_true", help="every process may use every core")
    parser.add_argument("--quick", action="store_true", help="one round, up to 32 streams, fewer requests")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the result into this page")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.requests, options.short_streams = 1, 300, 30
        options.levels = [level for level in options.levels if level <= 32] or options.levels[:1]
    return options


if __name__ == "__main__":
    main()
