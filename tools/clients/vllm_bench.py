"""vLLM's own `vllm bench serve` against a server, over each API that it can ask: URL MODEL TOKENIZER."""

# ruff: noqa: S101  a check is an assertion

import argparse
import sys

from checks import Server, run
from vllm.benchmarks.serve import add_cli_args, main

PROMPTS = 8
TOKENIZER = sys.argv.pop()


def measure(server: Server, backend: str, endpoint: str) -> None:
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    words = f"--dataset-name random --random-input-len 64 --random-output-len 8 --num-prompts {PROMPTS}"
    words += f" --base-url {server.url} --backend {backend} --endpoint {endpoint} --tokenizer {TOKENIZER}"
    words += " --ignore-eos --temperature 0 --max-concurrency 4 --disable-tqdm"
    result = main(parser.parse_args(words.split()))
    assert (result["completed"], result["total_output_tokens"]) == (PROMPTS, PROMPTS * 8), result


def completions(server: Server) -> None:
    measure(server, "openai", "/v1/completions")


def chat(server: Server) -> None:
    measure(server, "openai-chat", "/v1/chat/completions")


def responses(server: Server) -> None:
    measure(server, "openai-responses", "/v1/responses")


run({"/v1/completions": completions, "/v1/chat/completions": chat, "/v1/responses": responses})
