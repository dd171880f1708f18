import pytest
from msgspec.structs import replace

from atomesh.engine.core.remote_kv.config import OFF, RemoteKVConfig
from atomesh.engine.core.remote_kv.ticket_gate import MAX_GATEWAYS, TicketGate
from atomesh.errors import ConfigurationError
from atomesh.protocol.ticket import Ticket, sign

SECRET = b"secret"


def ticket(serial: int = 1, **fields: object) -> Ticket:
    values: dict[str, object] = {
        "ticket_id": serial.to_bytes(16, "big"),
        "gateway": "g",
        "serial": serial,
        "request_id": "r",
        "prefill": "p",
        "decode": "d",
        "ttl_s": 60.0,
    }
    return sign(SECRET, Ticket(**{**values, **fields}))


def gate(incarnation: str = "d", **fields: object) -> TicketGate:
    return TicketGate(RemoteKVConfig(SECRET, incarnation, **fields))


def test_a_ticket_is_good_once_for_each_purpose() -> None:
    one = gate()
    assert one.refusal(ticket(), "reserve", 0.0) is None
    assert one.refusal(ticket(), "decode", 0.0) is None
    assert one.refusal(ticket(), "reserve", 0.0) == "ticket_replayed"
    assert one.refusal(ticket(), "decode", 0.0) == "ticket_replayed"


@pytest.mark.parametrize(
    "change",
    [
        {"mac": b""},
        {"mac": b"x" * 32},
        {"request_id": "another"},
        {"serial": 7},
        {"ttl_s": 61.0},
        {"decode": "another"},
        {"ticket_id": b"y" * 16},
    ],
)
def test_what_is_not_signed_as_it_stands_is_forged_and_changes_nothing(change: dict[str, object]) -> None:
    one = gate()
    assert one.refusal(replace(ticket(), **change), "reserve", 0.0) == "ticket_forged"
    assert one.refusal(ticket(), "reserve", 0.0) is None


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 3601.0, float("inf"), float("nan")])
def test_a_signed_ticket_of_absurd_age_is_not_believed(ttl_s: float) -> None:
    assert gate().refusal(ticket(ttl_s=ttl_s), "reserve", 0.0) == "ticket_forged"


@pytest.mark.parametrize(
    ("incarnation", "purposes", "others"),
    [("p", ("prefill", "pull"), ("reserve", "decode")), ("d", ("reserve", "decode"), ("prefill", "pull"))],
)
def test_each_side_takes_only_what_is_meant_for_its_incarnation(
    incarnation: str, purposes: tuple[str, ...], others: tuple[str, ...]
) -> None:
    one = gate(incarnation)
    assert [one.refusal(ticket(), purpose, 0.0) for purpose in purposes] == [None, None]
    assert [one.refusal(ticket(), purpose, 0.0) for purpose in others] == ["ticket_incarnation"] * 2


@pytest.mark.parametrize(("incarnation", "purpose", "other"), [("d", "reserve", "p"), ("p", "pull", "d")])
def test_only_the_other_worker_that_it_names_can_show_it(incarnation: str, purpose: str, other: str) -> None:
    one = gate(incarnation)
    for presenter in ("somebody", incarnation, ""):
        assert one.refusal(ticket(), purpose, 0.0, presenter) == "ticket_peer"
        assert one.is_party(ticket().ticket_id, presenter)  # it has not been seen
    assert one.refusal(ticket(), purpose, 0.0, other) is None
    assert one.is_party(ticket().ticket_id, other)
    assert not one.is_party(ticket().ticket_id, "somebody")


def test_a_ticket_is_over_when_its_ttl_is() -> None:
    one = gate()
    assert one.end_of(ticket().ticket_id, 7.0) == 7.0
    one.refusal(ticket(), "reserve", 5.0)
    assert one.end_of(ticket().ticket_id, 7.0) == 65.0


def test_the_ttl_counts_from_first_sight() -> None:
    one = gate()
    assert one.refusal(ticket(), "reserve", 1000.0) is None
    assert one.refusal(ticket(), "decode", 1060.5) == "ticket_expired"
    late = ticket(serial=2)
    assert one.refusal(late, "reserve", 1000.0) is None
    assert one.refusal(late, "decode", 1060.0) is None


def test_a_buried_ticket_is_not_revived() -> None:
    one = gate()
    one.refusal(ticket(), "decode", 0.0)
    one.bury(ticket().ticket_id)
    assert one.refusal(ticket(), "reserve", 0.0) == "ticket_dead"
    one.bury(b"never seen")


def test_forgotten_tickets_are_refused_by_their_serial() -> None:
    one = gate(max_tickets=2)
    for serial in (5, 6, 7, 8):
        assert one.refusal(ticket(serial), "reserve", 0.0) is None
    assert one.refusal(ticket(5), "reserve", 0.0) == "ticket_serial"
    assert one.refusal(ticket(6), "reserve", 0.0) == "ticket_serial"
    assert one.refusal(ticket(4), "reserve", 0.0) == "ticket_serial"
    assert one.refusal(ticket(7), "reserve", 0.0) == "ticket_replayed"
    assert one.refusal(ticket(9), "reserve", 0.0) is None


def test_serials_are_each_gateways_own() -> None:
    one = gate(max_tickets=1)
    for serial in (50, 51):
        one.refusal(ticket(serial), "reserve", 0.0)
    assert one.refusal(ticket(1, gateway="h"), "reserve", 0.0) is None


def test_the_number_of_gateways_is_bounded() -> None:
    one = gate(max_tickets=1)
    one._low_water.update((str(number), 0) for number in range(MAX_GATEWAYS))
    assert one.refusal(ticket(), "reserve", 0.0) == "ticket_serial"
    assert one.refusal(ticket(gateway="3"), "reserve", 0.0) is None


def test_one_id_with_two_contents_is_a_replay() -> None:
    one = gate()
    one.refusal(ticket(), "reserve", 0.0)
    assert one.refusal(ticket(request_id="another"), "decode", 0.0) == "ticket_replayed"


def test_without_a_secret_nothing_is_good() -> None:
    unsigned = sign(b"", ticket(decode=""))
    assert TicketGate(OFF).refusal(unsigned, "reserve", 0.0) == "handoff_off"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lease_s", 0.0),
        ("lease_s", float("nan")),
        ("lease_s", float("inf")),
        ("max_tickets", 0),
        ("watermark", 1.0),
    ],
)
def test_a_configuration_that_cannot_work_names_its_field(field: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} is {value}"):
        RemoteKVConfig(SECRET, "d", **{field: value})
