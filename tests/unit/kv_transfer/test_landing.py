import xxhash

from atomesh.kv_transfer.landing import SCRATCH_BYTES, Landing


def feed(landing: Landing, data: bytes, most: int) -> None:
    while data:
        count = min(len(landing.space), most, len(data))
        landing.space[:count] = data[:count]
        landing.took(count)
        data = data[count:]


def test_bytes_fill_the_targets_and_are_summed_up() -> None:
    blocks = [bytearray(10) for _ in range(3)]
    landing = Landing(30, [memoryview(block) for block in blocks])
    data = bytes(range(30))
    feed(landing, data, most=4)
    assert landing.is_complete
    assert b"".join(blocks) == data
    assert landing.digests == [xxhash.xxh3_64_intdigest(data[start : start + 10]) for start in (0, 10, 20)]


def test_after_a_diversion_nothing_lands() -> None:
    blocks = [bytearray(10) for _ in range(3)]
    landing = Landing(30, [memoryview(block) for block in blocks])
    feed(landing, b"x" * 14, most=5)
    landing.divert()
    feed(landing, b"y" * 16, most=5)
    assert landing.is_complete
    assert landing.is_diverted
    assert b"".join(blocks) == b"x" * 14 + bytes(16)


def test_without_targets_all_goes_to_bounded_scratch() -> None:
    size = 3 * SCRATCH_BYTES + 5
    landing = Landing(size, ())
    assert landing.is_diverted
    assert len(landing.space) == SCRATCH_BYTES
    feed(landing, bytes(size - 5), most=SCRATCH_BYTES)
    assert len(landing.space) == 5
    feed(landing, bytes(5), most=5)
    assert landing.is_complete
    assert landing.digests == []


def test_nothing_is_complete_at_once() -> None:
    assert Landing(0, ()).is_complete
