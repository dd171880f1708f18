"""Amounts of memory as we write them."""

_UNITS = ("", "KiB", "MiB", "GiB", "TiB")


def format_size(num_bytes: int) -> str:
    """`16MiB`, `1.5GiB` or `7 bytes`: to one decimal, in units of 1,024."""
    power = min(max(num_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    number = f"{num_bytes / 2 ** (10 * power):.1f}".removesuffix(".0")
    return f"{number}{_UNITS[power]}" if power else f"{number} byte{'' if num_bytes == 1 else 's'}"
