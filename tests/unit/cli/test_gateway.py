from atomesh.cli.gateway import drain_line


def test_what_a_stop_waits_for_is_told() -> None:
    assert drain_line(1, 20.0) == "waiting for 1 answer, at most 20 s; Ctrl-C again stops now"
    assert drain_line(3, 0.5) == "waiting for 3 answers, at most 0.5 s; Ctrl-C again stops now"
