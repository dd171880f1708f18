from atomesh.mesh.dispatch.tickets import TicketOffice
from atomesh.protocol.ticket import TICKET_ID_BYTES, is_genuine
from atomesh.testing.mesh_snapshots import worker_snapshot

SECRET = b"s" * 32


def test_a_ticket_binds_one_attempt_to_both_lives_and_the_gateways_own() -> None:
    office = TicketOffice(SECRET, "gateway-life", ttl_s=7.0)
    ticket = office.mint("r~2", worker_snapshot("p"), worker_snapshot("d"))
    assert (ticket.gateway, ticket.request_id) == ("gateway-life", "r~2")
    assert (ticket.prefill, ticket.decode, ticket.ttl_s) == ("p-life", "d-life", 7.0)
    assert is_genuine(SECRET, ticket)
    assert not is_genuine(b"x" * 32, ticket)


def test_none_is_like_another_and_serials_grow() -> None:
    office = TicketOffice(SECRET, "g")
    tickets = [office.mint("r", worker_snapshot("p"), worker_snapshot("d")) for _ in range(50)]
    assert len({ticket.ticket_id for ticket in tickets}) == 50
    assert {len(ticket.ticket_id) for ticket in tickets} == {TICKET_ID_BYTES}
    assert [ticket.serial for ticket in tickets] == list(range(1, 51))


def test_the_office_knows_which_are_out() -> None:
    office = TicketOffice(SECRET, "g")
    first, second = (office.mint("r", worker_snapshot("p"), worker_snapshot("d")) for _ in range(2))
    assert (office.num_open, office.minted) == (2, 2)
    office.release(first)
    office.release(first)
    assert office.num_open == 1
    office.release(second)
    assert (office.num_open, office.minted) == (0, 2)
