import pytest

from atomesh.cli.sizes import parse_size
from atomesh.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1073741824", 2**30),
        ("2GiB", 2**31),
        ("512m", 2**29),
        ("1.5 GB", 3 * 2**29),
        ("64KiB", 2**16),
        ("7b", 7),
        ("1T", 2**40),
    ],
)
def test_amounts_are_read(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "GiB", "2 apples", "1e9", "0x10", "1.2.3G", "9" * 16, "٣"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="2GiB"):
        parse_size(text)
