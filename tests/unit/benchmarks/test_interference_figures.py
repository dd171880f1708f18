"""Gaps told apart by what they overlapped, from moments set by hand."""

from dataclasses import dataclass, replace

import pytest
from interference_figures import count_paths, figures_of, over_rounds


@dataclass
class Heard:
    sent_at: float
    token_at: list[float]
    prompt_tokens: int = 100
    serving_path: str = "unified"

    @property
    def ttft_s(self) -> float:
        return self.token_at[0] - self.sent_at


STREAM = Heard(0.0, [1.0, 2.0, 3.0, 4.0, 9.0, 10.0, 11.0, 12.0])  # stands still from 4 to 9
PROMPT = Heard(4.5, [8.5, 10.5], prompt_tokens=2000)  # read until 8.5, answered until 10.5
ALONE = [Heard(0.0, [3.0]), Heard(10.0, [12.0]), Heard(20.0, [29.0])]


def test_a_gap_is_reading_while_a_prompt_waits_and_idle_only_without_any() -> None:
    found = figures_of(ALONE, [STREAM], [PROMPT], (1.0, 12.0), 0.02)

    assert (found.reading_p50_s, found.reading_p99_s, found.reading_max_s) == (5.0, 5.0, 5.0)
    assert (found.idle_p50_s, found.idle_p99_s) == (1.0, 1.0)
    assert found.slowdown == 5.0


def test_rates_are_of_all_streams_together() -> None:
    found = figures_of(ALONE, [STREAM, STREAM], [PROMPT], (1.0, 12.0), 0.02)

    assert found.idle_tokens_s == pytest.approx(2.0)
    assert found.reading_tokens_s == pytest.approx(2 / 5)
    assert found.total_tokens_s == pytest.approx(2000 / 4)  # no stream's token came in those 4 s


def test_tokens_of_the_streams_count_while_prompts_are_read() -> None:
    later = Heard(8.0, [11.0, 11.5], prompt_tokens=500)
    found = figures_of(ALONE, [STREAM], [PROMPT, later], (1.0, 12.0), 0.02)

    assert found.total_tokens_s == pytest.approx((2500 + 3) / 6.5)
    assert (found.ttft_beside_s, found.ttft_beside_max_s) == (3.5, 4.0)
    assert found.ttft_alone_s == 3.0
    assert found.second_token_s == 1.25  # of 2.0 and 0.5


def test_what_lies_outside_the_window_counts_for_nothing() -> None:
    early = Heard(0.0, [0.0, 0.9, 2.0, 4.0, 9.0, 10.0, 12.0, 30.0])

    assert figures_of(ALONE, [early], [PROMPT], (1.0, 12.0), 0.02).idle_p99_s == pytest.approx(2.0)


def test_a_run_without_one_kind_of_gap_is_refused() -> None:
    with pytest.raises(ValueError, match="0 idle and 1 reading gaps"):
        figures_of(ALONE, [Heard(0.0, [4.0, 9.0])], [PROMPT], (1.0, 12.0), 0.02)


def test_rounds_come_to_medians_and_maxima_to_the_largest() -> None:
    one = figures_of(ALONE, [STREAM], [PROMPT], (1.0, 12.0), 0.02)
    rounds = [
        replace(one, idle_p99_s=p99, reading_max_s=longest, ttft_beside_max_s=longest, generator_share=share)
        for p99, longest, share in ((1.0, 9.0, 0.01), (3.0, 5.0, 0.04), (2.0, 7.0, 0.02))
    ]
    found = over_rounds(rounds)

    assert (found.idle_p99_s, found.reading_max_s, found.ttft_beside_max_s) == (2.0, 9.0, 9.0)
    assert found.generator_share == 0.04


def test_paths_are_counted_as_the_server_names_them() -> None:
    answers = [replace(PROMPT, serving_path=path) for path in ("a", "b", "a")]

    assert count_paths(answers) == {"a": 2, "b": 1}
