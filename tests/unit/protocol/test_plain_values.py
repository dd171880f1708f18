from typing import Any

import numpy as np
import pytest
import torch

from atomesh.protocol.plain_values import plain


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.int64(3), 3),
        (np.uint8(255), 255),
        (np.float32(0.1), 0.10000000149011612),
        (np.float64(0.1), 0.1),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(7), 7),
        (np.array([1, 2]), [1, 2]),
        (np.array([[1], [2]]), [[1], [2]]),
        (np.array(["a", "b"]), ["a", "b"]),
        (torch.tensor(5), 5),
        (torch.tensor([1.5]), [1.5]),
        ([np.int32(1), 2], [1, 2]),
        ((np.int32(1), 2), [1, 2]),
        ([np.array([1, 2]), [3]], [[1, 2], [3]]),
        ({np.int64(1): np.float32(0.5)}, {1: 0.5}),
    ],
)
def test_what_array_libraries_make_becomes_python_s_own(given: Any, expected: Any) -> None:
    made = plain(given)
    assert made == expected
    assert type(made) is type(expected)
    if isinstance(made, list):
        assert [type(item) for item in made] == [type(item) for item in expected]
    if isinstance(made, dict):
        assert [(type(key), type(value)) for key, value in made.items()] == [(int, float)]


@pytest.mark.parametrize("given", [1, True, None, "a", 0.5, [1, 2], (1, 2), {1: 0.5}, object(), b"a", {1, 2}])
def test_all_else_stays_the_same_object(given: Any) -> None:
    assert plain(given) is given
