import io

import pytest

from atomesh.prompt_progress import prompt_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, *, is_wanted: bool) -> str:
    monkeypatch.setattr("sys.stderr", stderr)
    with prompt_progress(3, is_wanted=is_wanted) as count:
        for finished in (1, 0, 2):
            count(finished)
    return stderr.getvalue()


def test_finished_prompts_are_counted_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "3/3" in run(monkeypatch, Terminal(), is_wanted=True)


def test_nothing_is_drawn_elsewhere_or_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, io.StringIO(), is_wanted=True) == ""
    assert run(monkeypatch, Terminal(), is_wanted=False) == ""
