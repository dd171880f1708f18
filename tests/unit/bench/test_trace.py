from pathlib import Path

import pytest

from atomesh.bench.trace import TraceEntry, read_trace
from atomesh.errors import ConfigurationError

MOONCAKE = """\
{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}

{"timestamp": 4500, "input_length": 10, "output_length": 1, "hash_ids": [7]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9305900,396,109\r
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "trace"
    path.write_text(text, newline="")
    return path


def test_reads_mooncake(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, MOONCAKE)) == [
        TraceEntry(0.0, 600, 5, (0, 1)),
        TraceEntry(1.5, 10, 1, (7,)),
    ]


def test_reads_azure(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path, AZURE))

    assert first == TraceEntry(0.0, 374, 44)
    assert (second.at_s, second.input_tokens, second.output_tokens) == (
        pytest.approx(4.25, abs=1e-5),
        396,
        109,
    )


def test_a_limit_keeps_the_first(tmp_path: Path) -> None:
    assert len(read_trace(written(tmp_path, MOONCAKE), limit=1)) == 1


def test_entries_are_put_in_order_of_arrival(tmp_path: Path) -> None:
    lines = '{"timestamp": 2000, "input_length": 1, "output_length": 1}\n' + MOONCAKE

    assert [entry.at_s for entry in read_trace(written(tmp_path, lines))] == [0.0, 1.0, 2.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MOONCAKE + "{\n", "line 4"),
        ('{"timestamp": 0, "input_length": 1}', "line 1 .*output_length"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1}', "input 0"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]}', "negative"),
        (AZURE + "2023-11-16 18:15:50,3\n", "line 4 .* it has 2 fields"),
        (AZURE + "yesterday,3,4\n", "line 4"),
        ("hello\n", "line 1"),
        ("", "has no requests"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        read_trace(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_trace(tmp_path / "nowhere")
