"""FAULTS A4, A5, A7, C4, C8, C9, C11: a gateway between puppets, each word and each moment chosen."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atomesh.protocol.frames import StepFrame
from atomesh.protocol.generation import DecodeLeg, PrefillLeg, Timings, TokenDelta
from atomesh.protocol.ticket import is_genuine
from atomesh.protocol.worker import Role
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.puppet_mesh import SECRET, PuppetMesh, puppet_mesh, run, until
from atomesh.testing.puppet_worker import LAYOUT, PuppetWorker

TIMINGS = Timings(queue_s=0.0, prefill_s=0.001)


def puppet(role: Role, number: int = 0, **layout: Any) -> PuppetWorker:
    made = PuppetWorker(role, SECRET, replace(LAYOUT, **layout))
    made.description = replace(
        made.description, worker_id=f"{role}-{number}", kv_address=f"unix:/{role}-{number}.kv"
    )
    return made


async def first_token(prefill: PuppetWorker, token: int = 70, number: int = 1) -> None:
    """Prefill does its leg."""
    submit = await prefill.submitted(number)
    assert isinstance(submit.leg, PrefillLeg)
    prefill.say(submit, token, timings=TIMINGS, cached_tokens=0)


async def the_rest(decode: PuppetWorker, number: int = 1, source: Any = "transferred") -> None:
    """Decode says what is missing of four tokens."""
    submit = await decode.submitted(number)
    assert isinstance(submit.leg, DecodeLeg)
    [begun] = submit.leg.outputs.values()
    left = 4 - len(begun)
    decode.say(
        submit, 71, kv_source=source, timings=Timings(0.0, 0.0, 0.002), finish=None if left > 1 else "length"
    )
    for index in range(1, left):
        decode.say(submit, 71 + index, finish="length" if index == left - 1 else None)


def test_both_legs_carry_one_genuine_ticket_and_the_whole_body(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d = puppet("prefill"), puppet("decode")
        async with puppet_mesh(tmp_path, p, d) as made:
            asked = made.asking()
            await first_token(p)
            await the_rest(d)
            reply = await asked
            assert (reply.status, reply.tokens) == (200, [70, 71, 72, 73])
            assert reply.headers["x-serving-path"] == "prefill-decode"
            [prefill], [decode] = p.submits, d.submits
            assert isinstance(prefill.leg, PrefillLeg)
            assert isinstance(decode.leg, DecodeLeg)
            assert prefill.leg.ticket == decode.leg.ticket
            assert is_genuine(SECRET, prefill.leg.ticket)
            assert prefill.leg.ticket.prefill == p.description.incarnation
            assert prefill.leg.ticket.decode == d.description.incarnation
            assert prefill.leg.decode_address == d.description.kv_address
            assert decode.leg.prefill_address == p.description.kv_address
            assert decode.leg.outputs == {0: [70]}
            assert prefill.request.prompt_token_ids == decode.request.prompt_token_ids == [1, 2, 3]
            assert p.aborts == d.aborts == []

    run(scenario)


def test_tickets_are_never_the_same_and_serials_grow(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d = puppet("prefill"), puppet("decode")
        async with puppet_mesh(tmp_path, p, d) as made:
            for number in (1, 2, 3):
                asked = made.asking()
                await first_token(p, number=number)
                await the_rest(d, number=number)
                assert (await asked).status == 200
            tickets = [submit.leg.ticket for submit in p.submits if isinstance(submit.leg, PrefillLeg)]
            assert len({ticket.ticket_id for ticket in tickets}) == 3
            assert [ticket.serial for ticket in tickets] == sorted({ticket.serial for ticket in tickets})

    run(scenario)


@pytest.mark.parametrize(
    ("field", "value"), [("model", "another"), ("weights", "v"), ("dtype", "bfloat16"), ("block_size", 32)]
)
def test_a4_workers_that_differ_are_never_a_pair_and_the_field_is_named(
    tmp_path: Path, field: str, value: object
) -> None:
    async def scenario() -> None:
        p, d = puppet("prefill"), puppet("decode", **{field: value})
        async with puppet_mesh(tmp_path, p, d, is_served=False) as made:
            reply = await made.complete()
            assert reply.status == 503
            assert field in reply.body["error"]["message"]
            assert p.submits == d.submits == []
            workers = (await made.admin("/workers"))["workers"]
            named = [one["difference"].split()[0] for worker in workers for one in worker["incompatible"]]
            assert named == [field, field]

    run(scenario)


def test_a5_prefills_failure_is_the_clients_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d = puppet("prefill"), puppet("decode")
        async with puppet_mesh(tmp_path, p, d) as made:
            asked = made.asking()
            began = time.monotonic()
            p.fail(await p.submitted(), "EngineError", "the engine could not compute this request")
            reply = await asked
            assert time.monotonic() - began < 2.0
            assert (reply.status, reply.body["error"]["message"]) == (
                500,
                "the engine could not compute this request",
            )
            assert (len(p.submits), len(d.submits)) == (1, 0)

    run(scenario)


def test_a7_a_fall_back_is_visible(tmp_path: Path) -> None:
    async def scenario() -> None:
        d = puppet("decode")
        async with puppet_mesh(tmp_path, d) as made:
            asked = made.asking(max_tokens=1)
            submit = await d.submitted()
            assert submit.leg is None
            d.say(submit, 9, finish="length", timings=TIMINGS, cached_tokens=0)
            assert (await asked).headers["x-serving-path"] == "local-prefill"
            async with made.http.get("/metrics") as response:
                metrics = await response.text()
            served = [
                line for line in metrics.splitlines() if line.startswith("atomesh_requests_served_total")
            ]
            assert [line.split()[-1] for line in served if 'path="local-prefill"' in line] == ["1.0"]

    run(scenario)


def test_b1_a_prompt_that_ends_with_its_first_token_never_asks_decode(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d = puppet("prefill"), puppet("decode")
        async with puppet_mesh(tmp_path, p, d) as made:
            asked = made.asking()
            p.say(await p.submitted(), 70, finish="stop", timings=TIMINGS, cached_tokens=0)
            assert (await asked).tokens == [70]
            assert d.submits == []
            asked = made.asking()
            await first_token(p, number=2)
            await the_rest(d)
            assert (await asked).tokens == [70, 71, 72, 73]
            assert p.aborts == d.aborts == []  # prefill has withdrawn the hand-off by itself

    run(scenario)


def test_c1_leaving_between_the_legs_tells_both(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d = puppet("prefill"), puppet("decode")
        async with puppet_mesh(tmp_path, p, d) as made:
            async with made.streaming() as frames:
                await first_token(p)
                assert (await anext(frames))["choices"][0]["token_ids"] == [70]
                await d.submitted()
            began = time.monotonic()
            await p.until(lambda one: one.aborts)
            await d.until(lambda one: one.aborts)
            assert time.monotonic() - began < 1.0
            assert p.aborts == d.aborts == [p.submits[0].request.request_id]

    run(scenario)


def test_c4_what_decode_turns_away_goes_elsewhere_and_prefill_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, first, second = puppet("prefill"), puppet("decode"), puppet("decode", 1)
        async with puppet_mesh(tmp_path, p, first, second) as made:
            asked = made.asking()
            await first_token(p)
            await until(lambda: first.submits or second.submits)
            one, other = (first, second) if first.submits else (second, first)
            one.fail(one.submits[0], "ServiceUnavailableError", "no room")
            await the_rest(other, source="recomputed")
            reply = await asked
            assert (reply.status, reply.tokens) == (200, [70, 71, 72, 73])
            assert p.aborts == [p.submits[0].request.request_id]
            assert other.submits[0].request.request_id != one.submits[0].request.request_id
            assert other.submits[0].leg.ticket is None

    run(scenario)


def test_c4_decodes_own_code_where_nobody_else_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        d = puppet("decode")
        async with puppet_mesh(tmp_path, d) as made:
            asked = made.asking()
            d.fail(await d.submitted(), "ServiceUnavailableError", "no room")
            reply = await asked
            assert (reply.status, reply.body["error"]["message"]) == (503, "no room")
            assert 1 <= int(reply.headers["retry-after"]) <= 120

    run(scenario)


async def pass_time(made: PuppetMesh, clock: ManualClock, seconds: float, *heard: PuppetWorker) -> None:
    """So long that the gateway does not think it had slept; it has heard these since."""
    clock.advance(seconds)
    await until(lambda: all(made.worker(one).heard_at == clock.now() for one in heard))


def test_c8_a_silent_worker_gets_no_new_work_after_a_second(tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second, clock = puppet("unified"), puppet("unified", 1), ManualClock()
        async with puppet_mesh(tmp_path, first, second, clock=clock) as made:
            first.is_silent = True
            await pass_time(made, clock, 1.01, second)
            for number in range(1, 9):
                asked = made.asking(max_tokens=1)
                submit = await second.submitted(number)
                second.say(submit, 9, finish="length", timings=TIMINGS, cached_tokens=0)
                assert (await asked).status == 200
            assert first.submits == []

    run(scenario)


def test_c8_what_only_a_silent_worker_could_do_waits_until_it_is_heard(tmp_path: Path) -> None:
    async def scenario() -> None:
        only, clock = puppet("unified"), ManualClock()
        async with puppet_mesh(tmp_path, only, clock=clock) as made:
            only.is_silent = True
            clock.advance(1.01)
            asked = [made.asking(max_tokens=1) for _ in range(3)]
            await until(lambda: made.gateway.registry.num_heeding == 3)
            assert only.submits == []
            only.is_silent = False
            for number in (1, 2, 3):
                only.say(await only.submitted(number), 9, finish="length", timings=TIMINGS, cached_tokens=0)
            assert [(await one).tokens for one in asked] == [[9]] * 3
            assert only.hellos == 1

    run(scenario)


def test_c8_or_is_refused_when_that_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        only, clock = puppet("unified"), ManualClock()
        async with puppet_mesh(tmp_path, only, clock=clock) as made:
            only.is_silent = True
            await pass_time(made, clock, 1.01)
            asked = made.asking()
            await until(lambda: made.gateway.registry.num_heeding == 1)
            clock.advance(1.5)
            reply = await asked
            assert (reply.status, only.submits) == (503, [])
            assert 1 <= int(reply.headers["retry-after"]) <= 120
            assert "no worker is ready" in reply.message
            assert (await made.complete()).status == 503

    run(scenario)


@pytest.mark.parametrize("end", ["leaves", "is late"])
def test_c8_who_waits_and_goes_costs_nothing(tmp_path: Path, end: str) -> None:
    async def scenario() -> None:
        only, clock = puppet("unified"), ManualClock()
        async with puppet_mesh(tmp_path, only, clock=clock) as made:
            only.is_silent = True
            clock.advance(1.01)
            asked = asyncio.create_task(made.complete(0.2 if end == "is late" else None))
            await until(lambda: made.gateway.registry.num_heeding == 1)
            if end == "leaves":
                asked.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asked
            else:
                assert (await asked).status == 504
            await until(lambda: made.gateway.registry.num_heeding == 0)
            assert made.worker(only).dispatched == 0
            only.is_silent = False
            await until(lambda: made.worker(only).heard_at == clock.now())
            assert only.submits == only.aborts == []

    run(scenario)


def test_c8_a_silent_worker_is_lost_after_three_seconds_and_its_request_moves(tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second, clock = puppet("unified"), puppet("unified", 1), ManualClock()
        async with puppet_mesh(tmp_path, first, second, clock=clock) as made:
            asked = made.asking()
            await until(lambda: first.submits or second.submits)
            one, other = (first, second) if first.submits else (second, first)
            old = one.submits[0]
            one.is_silent = True
            for _ in range(6):
                await pass_time(made, clock, 0.4, other)
            assert (made.worker(one).state, other.submits) == ("ready", [])
            await pass_time(made, clock, 0.4, other)
            submit = await other.submitted()
            assert submit.request.prompt_token_ids == old.request.prompt_token_ids
            one.is_silent = False
            await one.until(lambda woken: woken.hellos == 2)
            one.say(old, 9, 9, 9, finish="length", timings=TIMINGS, cached_tokens=0)
            one.send(StepFrame([TokenDelta(request_id=submit.request.request_id, token_ids=[9])], one.load))
            other.say(submit, 70, 71, 72, 73, finish="length", timings=TIMINGS, cached_tokens=0)
            assert (await asked).tokens == [70, 71, 72, 73]

    run(scenario)


@pytest.mark.parametrize("slow", ["prefill", "decode"])
def test_c9_the_deadline_aborts_every_leg(tmp_path: Path, slow: str) -> None:
    async def scenario() -> None:
        p, d = puppet("prefill"), puppet("decode")
        async with puppet_mesh(tmp_path, p, d) as made:
            began = time.monotonic()
            asked = asyncio.create_task(made.complete(2.0))
            if slow == "decode":
                await first_token(p)
                await d.submitted()
            reply = await asked
            assert reply.status == 504
            assert time.monotonic() - began == pytest.approx(2.0, abs=0.3)
            await p.until(lambda one: one.aborts)
            if slow == "decode":
                await d.until(lambda one: one.aborts)

    run(scenario)


def test_c11_a_retry_has_a_new_id_and_the_whole_body(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d = puppet("prefill"), puppet("decode")
        async with puppet_mesh(tmp_path, p, d) as made:
            asked = made.asking(seed=5, temperature=0.5, stop=["zz"])
            lost = await p.submitted()
            p.hang_up()
            again = await d.submitted()
            assert again.request.request_id != lost.request.request_id
            assert replace(again.request, request_id="") == replace(lost.request, request_id="")
            d.say(again, 9, 8, 7, 6, finish="length", timings=TIMINGS, cached_tokens=0)
            reply = await asked
            assert (reply.status, reply.tokens) == (200, [9, 8, 7, 6])
            assert reply.headers["x-serving-path"] == "local-prefill"

    run(scenario)


def test_c11_only_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d, third = puppet("prefill"), puppet("decode"), puppet("decode", 1)
        async with puppet_mesh(tmp_path, p, d, third) as made:
            asked = made.asking(prompt=[9, 9])
            for _ in range(2):
                await until(lambda: any(one.submits for one in (p, d, third)))
                [holder] = [one for one in (p, d, third) if one.submits]
                holder.hang_up()
                holder.asked.clear()
            reply = await asked
            assert (reply.status, reply.message) == (
                500,
                "2 workers were lost while they computed this answer",
            )
            assert p.submits == d.submits == third.submits == []

    run(scenario)


def test_c11_a_bad_request_is_not_tried_again_nor_held_against_the_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d = puppet("prefill"), puppet("decode")
        async with puppet_mesh(tmp_path, p, d) as made:
            for number in range(1, 6):
                asked = made.asking()
                p.fail(await p.submitted(number), "InvalidRequestError", "this cannot run")
                reply = await asked
                assert (reply.status, reply.body["error"]["message"]) == (400, "this cannot run")
            assert (len(p.submits), len(d.submits)) == (5, 0)
            asked = made.asking()
            await first_token(p, number=6)
            await the_rest(d)
            assert (await asked).status == 200

    run(scenario)


def test_c11_after_the_first_token_an_answer_goes_on_and_never_starts_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, first, second = puppet("prefill"), puppet("decode"), puppet("decode", 1)
        async with puppet_mesh(tmp_path, p, first, second) as made, made.streaming() as frames:
            await first_token(p)
            await until(lambda: first.submits or second.submits)
            one, other = (first, second) if first.submits else (second, first)
            one.say(one.submits[0], 71, kv_source="transferred")
            tokens: list[int] = []
            while tokens != [70, 71]:
                tokens += (await anext(frames))["choices"][0]["token_ids"]
            one.hang_up()
            submit = await other.submitted()
            assert submit.leg == DecodeLeg(outputs={0: [70, 71]})
            other.say(submit, 72, kv_source="recomputed")
            other.say(submit, 73, finish="length")
            rest = [frame async for frame in frames]
            choices = [frame["choices"][0] for frame in rest if frame.get("choices")]
            assert [token for choice in choices for token in choice["token_ids"]] == [72, 73]
            assert [choice["finish_reason"] for choice in choices] == [None, "length"]
            assert rest[-1] == {}
            assert len(p.submits) == 1

    run(scenario)


def test_c7_a_worker_that_is_back_is_used_within_seconds(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = puppet("unified")
        async with puppet_mesh(tmp_path, one) as made:
            for number in range(1, 4):
                one.reincarnate()
                one.hang_up()
                began = time.monotonic()
                await one.until(lambda woken, hellos=number + 1: woken.hellos == hellos)
                assert time.monotonic() - began < 5.0
                asked = made.asking(max_tokens=1)
                one.say(await one.submitted(number), 9, finish="length", timings=TIMINGS, cached_tokens=0)
                assert (await asked).status == 200

    run(scenario)
