"""Amounts of memory as people write them."""

import re

from atomesh.errors import ConfigurationError

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of "2GiB", "512M", "1.5g" or "1073741824"; all units are powers of 1,024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{text!r} is no amount of memory; write 2GiB, 512MiB or a number of bytes")
    number, unit = match.groups()
    return int(float(number) * _UNITS[unit.lower()])
