import pytest

from atomesh.byte_size import format_size


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (7, "7 bytes"),
        (2**10, "1KiB"),
        (2**24, "16MiB"),
        (3 * 2**29, "1.5GiB"),
        (2**51, "2048TiB"),
    ],
)
def test_sizes_read_as_people_write_them(num_bytes: int, expected: str) -> None:
    assert format_size(num_bytes) == expected
