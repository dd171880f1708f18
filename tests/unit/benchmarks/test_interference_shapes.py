import pytest
from interference_shapes import Shape


def test_workers_apart_and_together() -> None:
    apart, unified = Shape.parse("2+3"), Shape.parse("1x512")

    assert (apart.name, apart.flags, apart.is_apart) == (
        "2 prefill + 3 decode",
        ("--prefill=2", "--decode=3"),
        True,
    )
    assert (unified.name, unified.flags, unified.is_apart) == (
        "1 unified, chunks of 512",
        ("--unified=1", "--max-num-batched-tokens=512"),
        False,
    )


@pytest.mark.parametrize("text", ["", "1", "1+", "0+1", "1x0", "+1", "1*512", "1+1+1", "unified"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no shape"):
        Shape.parse(text)
