from atomesh.kv_transfer.strangers import Strangers


def test_the_oldest_is_the_first_to_go_and_the_first_to_be_late() -> None:
    strangers = Strangers[str]()
    assert strangers.next_deadline() is None
    for number, name in enumerate("abcd"):
        strangers.add(name, float(number))
    assert (len(strangers), strangers.oldest(), strangers.next_deadline()) == (4, "a", 0.0)
    strangers.discard("a")
    strangers.discard("a")
    assert (len(strangers), strangers.oldest(), strangers.next_deadline()) == (3, "b", 1.0)
    late = []
    for name in strangers.overdue(2.0):
        late.append(name)
        strangers.discard(name)
    assert late == ["b", "c"]
    assert strangers.oldest() == "d"
