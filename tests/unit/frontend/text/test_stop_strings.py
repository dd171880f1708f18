import tracemalloc

from atomesh.frontend.text.stop_strings import StopMatch, StopSearch


def test_a_match_that_fails_late_falls_back_to_the_longest_beginning() -> None:
    search = StopSearch(["aabaac"])
    assert search.feed("aabaab") is None
    assert search.held == 3
    assert search.feed("aac") == StopMatch("aabaac", 3)


def test_the_longest_beginning_of_any_stop_is_held() -> None:
    search = StopSearch(["xyz", "zzzq"])
    assert search.feed("axy") is None
    assert search.held == 2
    assert search.feed("-zz") is None
    assert search.held == 2


def test_without_stops_nothing_is_held() -> None:
    search = StopSearch([])
    assert search.feed("anything") is None
    assert search.held == 0


def test_sixty_four_long_stops_that_nearly_match_stay_cheap() -> None:
    stops = ["a" * 1000 + chr(0x4E00 + i) for i in range(64)]
    search = StopSearch(stops)
    assert search.feed("a" * 2000) is None
    assert search.held == 1000
    assert search.feed("\u4e05") == StopMatch(stops[5], 1)


def test_stop_strings_that_are_never_begun_take_no_memory() -> None:
    stops = [chr(0x4E00 + i) + "a" * 1000 for i in range(64)]
    tracemalloc.start()
    searches = [StopSearch(stops) for _ in range(100)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / len(searches) < 10_000  # tables of fallbacks would take 64 * 8,000
    assert searches[0].feed("\u4e01aaa") is None
    assert searches[0].held == 4
