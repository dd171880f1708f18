import json

import pytest

from atomesh.cli.banner import Ready, print_ready
from atomesh.cli.readiness import EngineFacts, ServedFacts

ENGINE = EngineFacts(dtype="bfloat16", max_model_len=8192, kv_tokens=16384, kv_bytes=3 * 2**29)
READY = Ready("http://127.0.0.1:8000", ServedFacts("m", (ENGINE,)), 2.04, needs_key=True, pid=7)


def test_the_banner_says_what_the_engine_came_to(capsys: pytest.CaptureFixture[str]) -> None:
    print_ready(READY, as_json=False)
    text = capsys.readouterr().out
    assert text.startswith(
        "m is ready in 2.0 s\n  bfloat16, max_model_len 8192, KV pool 1.5GiB (16384 tokens) in each worker\n"
    )
    assert "Bearer YOUR_KEY" in text
    assert " chat --url http://127.0.0.1:8000" in text


def test_as_json_it_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_ready(READY, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["model"], document["pid"], document["ready_s"]) == ("m", 7, 2.04)
    assert document["engines"] == [
        {"dtype": "bfloat16", "max_model_len": 8192, "kv_tokens": 16384, "kv_bytes": 3 * 2**29}
    ]
