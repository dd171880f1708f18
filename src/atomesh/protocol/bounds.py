"""How large a number, and how long a word, may be that one process tells another of itself."""

from typing import Annotated

import msgspec

MAX_COUNT = 2**53  # as far as a metric, a float, counts exactly
MAX_BLOCKS = 2**31
MAX_BLOCK_SIZE = 2**20
MAX_TOKENS = 2**31
MAX_NAME = 512
MAX_SECONDS = 1e9
MAX_WEIGHT = 1000.0
_PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Blocks = Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCKS)]
BlockSize = Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_SIZE)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Length = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_SECONDS)]
Weight = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_WEIGHT)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME, pattern=_PRINTABLE)]
Words = Annotated[str, msgspec.Meta(max_length=MAX_NAME, pattern=_PRINTABLE)]
Outcome = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
CountsByOutcome = Annotated[dict[Outcome, Count], msgspec.Meta(max_length=256)]
TokenIds = Annotated[tuple[Tokens, ...], msgspec.Meta(max_length=1024)]
Path = Annotated[str, msgspec.Meta(max_length=4096)]
