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
    assert choose_pools(1, None, None, can_hand_over=False) == Pools(prefill=1, decode=1)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ((0, 1, None), "leaves nobody to prefill"),
        ((1, 0, None), "leaves nobody to decode"),
        ((None, None, 0), "leaves nobody to prefill"),
        ((-1, 1, 1), "none may be negative"),
        ((1, 1, 63), "at most 64"),
    ],
)
def test_pools_that_cannot_serve_are_refused(
    asked: tuple[int | None, int | None, int | None], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        choose_pools(*asked)


def test_each_worker_has_a_seat() -> None:
    assert Pools(prefill=1, decode=2, unified=1).seats == [
        Seat("prefill-0", "prefill"),
        Seat("decode-0", "decode"),
        Seat("decode-1", "decode"),
        Seat("unified-0", "unified"),
    ]
