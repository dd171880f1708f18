import pytest

from atomesh.cli.pools import Pools, Seat, choose_pools
from atomesh.errors import ConfigurationError


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((None, None, None), Pools(prefill=1, decode=1)),
        ((2, None, None), Pools(prefill=2, decode=1)),
        ((None, 3, None), Pools(prefill=1, decode=3)),
        ((1, 1, None), Pools(prefill=1, decode=1)),
        ((None, None, 2), Pools(unified=2)),
        ((1, None, 1), Pools(prefill=1, unified=1)),
        ((None, 2, 1), Pools(decode=2, unified=1)),
        ((0, 0, 1), Pools(unified=1)),
        ((1, 1, 0), Pools(prefill=1, decode=1)),
    ],
)
def test_what_is_not_said_follows_from_what_is(
    asked: tuple[int | None, int | None, int | None], expected: Pools
) -> None:
    assert choose_pools(*asked) == expected


def test_where_kv_cannot_be_handed_over_one_worker_does_both() -> None:
    assert choose_pools(None, None, None, can_hand_over=False) == Pools(unified=1)
    assert choose_pools(None, None, 2, can_hand_over=False) == Pools(unified=2)
    with pytest.raises(ConfigurationError, match=r"^--prefill 1 --decode 1: KV .*; write --unified 2, or"):
        choose_pools(1, None, None, can_hand_over=False)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (
            (0, 1, None),
            "--prefill 0 --decode 1 leaves nobody to prefill: write --prefill 1, or --unified 1",
        ),
        (
            (1, 0, None),
            "--prefill 1 --decode 0 leaves nobody to decode: write --decode 1, or --unified 1",
        ),
        (
            (None, None, 0),
            "--unified 0 leaves nobody to prefill or decode: write --prefill 1 --decode 1, or --unified 1",
        ),
        (
            (0, None, None),
            "--prefill 0 leaves nobody to prefill or decode: write --prefill 1 --decode 1, or --unified 1",
        ),
        (
            (-1, 1, 1),
            "--prefill -1 --decode 1 --unified 1: no number of workers is negative; write 0 or more",
        ),
        ((None, None, -2), "--unified -2: no number of workers is negative; write 0 or more"),
        (
            (1, 1, 63),
            "--prefill 1 --decode 1 --unified 63 makes 65 workers; the most is 64: ask for fewer",
        ),
        ((None, 64, None), "--decode 64 makes 65 workers; the most is 64: ask for fewer"),
    ],
)
def test_pools_that_cannot_serve_are_refused(
    asked: tuple[int | None, int | None, int | None], complaint: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        choose_pools(*asked)
    assert caught.value.message == complaint


def test_each_worker_has_a_seat() -> None:
    assert Pools(prefill=1, decode=2, unified=1).seats == [
        Seat("prefill-0", "prefill"),
        Seat("decode-0", "decode"),
        Seat("decode-1", "decode"),
        Seat("unified-0", "unified"),
    ]
