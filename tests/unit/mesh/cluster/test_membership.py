from hypothesis import given
from hypothesis import strategies as st

from atomesh.mesh.cluster.membership import MAX_MEMBERS, Change, Membership

NAMES = st.sampled_from("abcd")


def test_who_is_named_by_another_stays() -> None:
    made = Membership()
    assert made.replace("file", ["a", "b"]) == Change(joined=("a", "b"))
    assert made.replace("dns", ["b", "c"]) == Change(joined=("c",))
    assert made.replace("file", []) == Change(left=("a",))
    assert made.replace("dns", []) == Change(left=("b", "c"))


def test_a_source_names_so_many_at_most() -> None:
    made = Membership()
    assert len(made.replace("file", map(str, range(MAX_MEMBERS + 9))).joined) == MAX_MEMBERS


@given(st.lists(st.tuples(st.sampled_from(["file", "dns"]), st.lists(NAMES))))
def test_the_changes_add_up_to_what_the_sources_name(steps: list[tuple[str, list[str]]]) -> None:
    made, members, named = Membership(), set[str](), dict[str, set[str]]()
    for source, addresses in steps:
        change = made.replace(source, addresses)
        assert not members & set(change.joined)
        members = (members | set(change.joined)) - set(change.left)
        named[source] = set(addresses)
        assert members == set().union(*named.values())
