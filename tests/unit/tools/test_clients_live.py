"""What tools/clients_live.py makes of the verdicts of clients' own scripts."""

import sys
from pathlib import Path

from clients_live import Tool, Verdict, judge, report
from multiple_choice import Api

API = Api("http://127.0.0.1:1", "m")


def tool(tmp_path: Path, script: str) -> Tool:
    path = tmp_path / "calls.py"
    path.write_text(script)
    return Tool("thing", "1.2", Path(sys.executable), str(path), ("more",))


def test_a_script_says_what_works_and_what_does_not(tmp_path: Path) -> None:
    says = 'import json, sys\nprint("noise")\nprint(json.dumps({"chat": "", "stream": sys.argv[3]}))'
    one = tool(tmp_path, says)
    assert judge(one, "1+1", API) == [
        Verdict(one, "1+1", "chat", ""),
        Verdict(one, "1+1", "stream", "more"),
    ]


def test_a_script_that_ends_badly_is_a_fault(tmp_path: Path) -> None:
    one = tool(tmp_path, "raise SystemExit(3)")
    assert judge(one, "unified", API) == [Verdict(one, "unified", "runs", "ended with status 3")]


def test_the_table_has_a_column_for_each_shape(tmp_path: Path) -> None:
    one = tool(tmp_path, "")
    text = report(
        [
            Verdict(one, "unified", "chat", ""),
            Verdict(one, "1+1", "chat", "TypeError: a\nb|c"),
            Verdict(one, "unified", "stream", ""),
        ]
    )
    assert "| thing | 1.2 | chat | works | TypeError: a b¦c |" in text
    assert "| thing | 1.2 | stream | works | – |" in text
