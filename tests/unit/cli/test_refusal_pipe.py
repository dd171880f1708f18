import pytest

from atomesh.cli.refusal_pipe import MAX_BYTES, REFUSAL_FD, RefusalPipe, refuse


def test_what_a_child_refuses_reaches_its_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = RefusalPipe()
    with pipe.writable() as descriptor:
        monkeypatch.setenv(REFUSAL_FD, str(descriptor))
        assert refuse("ä" * MAX_BYTES)
    assert pipe.read() == "ä" * (MAX_BYTES // 2)


def test_a_child_that_said_nothing_refused_nothing() -> None:
    pipe = RefusalPipe()
    with pipe.writable():
        pass
    assert pipe.read() == ""


@pytest.mark.parametrize("descriptor", ["", "x", "1000000"])
def test_without_a_supervisor_nobody_is_told(monkeypatch: pytest.MonkeyPatch, descriptor: str) -> None:
    monkeypatch.setenv(REFUSAL_FD, descriptor)
    assert not refuse("why")
