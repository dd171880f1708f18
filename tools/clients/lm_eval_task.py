"""lm-eval's local-completions on the multiple-choice task: URL MODEL QUESTIONS RIGHT, how many to find."""

# ruff: noqa: S101  a check is an assertion

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import Server, run

RIGHT = int(sys.argv.pop())
QUESTIONS = Path(sys.argv.pop())
TASK = f"""task: choices
dataset_path: json
dataset_kwargs:
  data_files:
    test: {QUESTIONS}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


def score(server: Server, batch_size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "choices.yaml").write_text(TASK)
        settings = f"model={server.model},base_url={server.api}/completions,num_concurrent=4,max_length=2048"
        words = ["run", "--model", "local-completions", "--model_args", settings]
        words += ["--include_path", directory, "--tasks", "choices", "--batch_size", str(batch_size)]
        words += ["--output_path", f"{directory}/found.json"]
        subprocess.run([sys.executable, "-m", "lm_eval", *words], check=True, stdout=sys.stderr)
        (found,) = Path(directory).glob("found*.json")
        accuracy = json.loads(found.read_text())["results"]["choices"]["acc,none"]
    count = len(QUESTIONS.read_text().splitlines())
    assert round(accuracy * count) == RIGHT, f"{accuracy} of {count}, not {RIGHT}"


def one_by_one(server: Server) -> None:
    score(server, 1)


def in_batches(server: Server) -> None:
    score(server, 4)


run({"multiple choice, one by one": one_by_one, "multiple choice, in batches": in_batches})
