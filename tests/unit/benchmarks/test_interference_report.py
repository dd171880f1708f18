"""What the report says of given figures, in both directions."""

from collections import Counter

from interference_figures import Figures
from interference_report import Found, Report, Setting
from interference_shapes import Shape
from machine import Machine

SETTING = Setting(
    model="tiny",
    dtype="float32",
    commit="0123456789",
    machine=Machine(cpu="a processor", cores=2, threads=1, memory_gib=8, torch="2.13.0"),
    num_streams=4,
    lengths=(4096, 2048),
    answer_tokens=8,
    interval_s=12.5,
    rounds=1,
)


def found(shape: str, reading_p99: float, alone: float, beside: float, **paths: int) -> Found:
    figures = Figures(
        idle_p50_s=0.02,
        idle_p99_s=0.04,
        reading_p50_s=0.03,
        reading_p99_s=reading_p99,
        reading_max_s=2 * reading_p99,
        idle_tokens_s=200.0,
        reading_tokens_s=100.0,
        total_tokens_s=1234.5,
        ttft_alone_s=alone,
        ttft_beside_s=beside,
        ttft_beside_max_s=2 * beside,
        second_token_s=0.07,
        generator_share=0.03,
    )
    return Found(Shape.parse(shape), [figures], Counter({k.replace("_", "-"): v for k, v in paths.items()}))


APART = found("1+1", 0.05, alone=10.0, beside=11.0, prefill_decode=4)
FINE = found("1x64", 0.2, alone=8.0, beside=16.5)
COARSE = found("1x1024", 1.0, alone=5.0, beside=13.2)


def test_the_tables_have_a_row_for_each_shape() -> None:
    text = Report(SETTING, [APART, FINE]).as_markdown()

    assert "| 1 prefill + 1 decode | 20.0 | 40.0 | 30.0 | 50.0 | 100.0 | 1.25× |" in text
    assert "| 1 unified, chunks of 64 | 20.0 | 40.0 | 30.0 | 200.0 | 400.0 | 5.00× |" in text
    assert "| 1 unified, chunks of 64 | 8.00 | 16.50 | 33.00 | 70.0 | 200.0 | 100.0 | 1,234 |" in text


def test_the_wanted_ratio_is_met_and_the_steadiest_chunk_is_beside_it() -> None:
    text = Report(SETTING, [APART, FINE, COARSE]).as_markdown()

    assert "1.25× its idle value (wanted: at most 1.5×, met)" in text
    assert "that of 1 unified, chunks of 64: 5.00× its idle value, 4.00× that of 1 prefill" in text


def test_a_missed_ratio_is_said() -> None:
    text = Report(SETTING, [found("1+1", 0.061, alone=1.0, beside=1.0)]).as_markdown()

    assert "1.52× its idle value (wanted: at most 1.5×, missed)" in text


def test_who_wins_the_first_token_is_said_against_the_quickest() -> None:
    text = Report(SETTING, [APART, FINE, COARSE]).as_markdown()

    assert (
        "Alone on an idle server: 10.00 s with 1 prefill + 1 decode, 5.00 s with the quickest, "
        "1 unified, chunks of 1024; colocation wins by 2.00×."
    ) in text
    assert "11.00 s with 1 prefill + 1 decode, 13.20 s with the quickest" in text
    assert "apart wins by 1.20×" in text


def test_prompts_that_took_another_path_are_said() -> None:
    other = found("1+1", 0.05, alone=1.0, beside=1.0, prefill_decode=3, local_prefill=1)

    assert "4 of 4 long prompts went from prefill to decode." in Report(SETTING, [APART]).as_markdown()
    assert "3 of 4 long prompts went from prefill to decode; the others: 1 local-prefill." in (
        Report(SETTING, [other]).as_markdown()
    )


def test_json_has_every_round() -> None:
    shapes = Report(SETTING, [APART]).as_json()["shapes"]

    assert shapes["1+1"]["slowdown"] == 1.25
    assert shapes["1+1"]["serving_paths"] == {"prefill-decode": 4}
    assert [one["reading_p99_s"] for one in shapes["1+1"]["rounds"]] == [0.05]
