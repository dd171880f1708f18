"""Real clients that cannot live in our own environment, against `atomesh serve` in both shapes: make clients.

    python tools/clients_live.py --environments DIRECTORY [--vllm DIRECTORY] [--write docs/clients.md]

Outside CI: it makes virtual environments (about 1 GB) where they are missing. `vllm bench serve` is run where
--vllm names an environment that `make vllm` has made; otherwise it is left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_servers import REQUIREMENTS as VLLM_REQUIREMENTS
from vllm_servers import ROOT, model_of

sys.path.append(str(ROOT / "benchmarks"))
from multiple_choice import QUESTIONS, Api, ask_server, encode_question, read_questions
from results_page import table, write_section
from revision import commit

from atomesh.cli import environment
from atomesh.model_files.catalog import DEFAULT_MODEL
from atomesh.testing.served_process import served_process, wait_ready

OWNER = "tools/clients_live.py"
SHAPES = {"unified": ("--unified=1",), "1+1": ("--prefill=1", "--decode=1")}
LLAMA_INDEX = ("llama-index-llms-openai-like==0.8.1", "litellm==1.110.2")  # needs an openai older than ours
LM_EVAL = ("lm-eval[api]==0.4.13",)
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


@dataclass(frozen=True, slots=True)
class Tool:
    """`script` lies in tools/clients and is given a server's URL, the model's name and `arguments`."""

    name: str
    version: str
    python: Path
    script: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """`fault` is empty where the check passed."""

    tool: Tool
    shape: str
    check: str
    fault: str


def main() -> int:
    options = _parse()
    verdicts = [verdict for shape in SHAPES for verdict in _judge_shape(shape, options)]
    text = report(verdicts)
    print(text)
    if options.write is not None:
        write_section(options.write, OWNER, text)
    return int(any(verdict.fault for verdict in verdicts))


def _judge_shape(shape: str, options: argparse.Namespace) -> list[Verdict]:
    with serving(SHAPES[shape]) as api:
        questions = read_questions()
        right = ask_server(api, [encode_question(api, one) for one in questions]).count_right(questions)
        return [verdict for tool in find_tools(options, right) for verdict in judge(tool, shape, api)]


@contextmanager
def serving(flags: Sequence[str]) -> Iterator[Api]:
    with served_process(
        DEFAULT_MODEL, environment.home(), "--max-model-len=2048", *flags, kv_memory="1GiB"
    ) as served:
        wait_ready(served)
        yield Api(served.url, served.model)


def find_tools(options: argparse.Namespace, right: int) -> list[Tool]:
    """Those that can be run here; `right` is how many questions the server itself was found to answer."""
    llama_index = make_environment(options.environments / "llama-index", LLAMA_INDEX)
    lm_eval = make_environment(options.environments / "lm-eval", LM_EVAL)
    tools = [
        Tool("llama-index-llms-openai-like", _pin(LLAMA_INDEX[0]), llama_index, "llama_index_calls.py"),
        Tool("litellm", _pin(LLAMA_INDEX[1]), llama_index, "litellm_calls.py"),
        Tool("lm-eval", _pin(LM_EVAL[0]), lm_eval, "lm_eval_task.py", (str(QUESTIONS), str(right))),
    ]
    if options.vllm is not None and (options.vllm / "bin/python").exists():
        version, python = _pin(VLLM_REQUIREMENTS[0]), options.vllm / "bin/python"
        tokenizer = (str(model_of(options.vllm).resolve()),)
        tools.append(Tool("vllm bench serve", version, python.absolute(), "vllm_bench.py", tokenizer))
    return tools


def make_environment(directory: Path, requirements: Sequence[str]) -> Path:
    """The environment's Python; what is there already stays."""
    python = directory.absolute() / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *requirements], check=True)
    return python


def judge(tool: Tool, shape: str, api: Api) -> list[Verdict]:
    """What the client's script says of each of its checks; one verdict where it says nothing."""
    words = [str(tool.python), str(ROOT / "tools/clients" / tool.script), api.url, api.model]
    with tempfile.TemporaryDirectory() as home:
        variables = {**os.environ, **OFFLINE, "HF_HOME": home}
        done = subprocess.run(
            [*words, *tool.arguments], env=variables, cwd=home, stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        return [Verdict(tool, shape, "runs", f"ended with status {done.returncode}")]
    faults: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return [Verdict(tool, shape, check, fault) for check, fault in faults.items()]


def report(verdicts: Sequence[Verdict]) -> str:
    outcomes = {
        (one.tool.name, one.tool.version, one.check, one.shape): _outcome(one.fault) for one in verdicts
    }
    rows = [
        [name, version, check, *(outcomes.get((name, version, check, shape), "–") for shape in SHAPES)]
        for name, version, check in dict.fromkeys(key[:3] for key in outcomes)
    ]
    text = table(["client", "version", "what", *SHAPES], rows)
    return f"## Real clients against the default model\n\nCommit {commit()}, float32.\n\n{text}"


def _outcome(fault: str) -> str:
    return fault.replace("\n", " ").replace("|", "¦")[:100] or "works"


def _pin(requirement: str) -> str:
    return requirement.partition("==")[2]


def _parse() -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--environments", type=Path, required=True)
    parser.add_argument("--vllm", type=Path)
    parser.add_argument("--write", type=Path, help="the page whose section is to be written")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
