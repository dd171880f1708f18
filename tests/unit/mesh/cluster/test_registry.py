from collections.abc import Callable

from atomesh.mesh.cluster.registry import Work, WorkerRegistry
from atomesh.protocol.worker import PRESETS, LoadReport, ModelDescription, WorkerDescription


def describe(incarnation: str, model: str = "m") -> WorkerDescription:
    shape = ModelDescription(
        name=model,
        path="",
        architecture="",
        dtype="",
        vocab_size=1,
        max_model_len=1,
        eos_token_ids=(),
        block_size=16,
        num_blocks=1,
    )
    return WorkerDescription(worker_id="w", incarnation=incarnation, pid=1, role="unified", model=shape)


def test_a_worker_is_ready_between_hello_and_loss() -> None:
    heard: list[WorkerDescription] = []
    registry = WorkerRegistry(heard.append)
    registry.expect("a")
    assert registry.snapshot().workers[0].state == "connecting"
    registry.lost("a")
    assert registry.snapshot().workers[0].state == "connecting"
    registry.connected("a", describe("1"), now=5.0)
    [ready] = registry.snapshot().ready("m")
    assert (ready.heard_at, ready.model_name) == (5.0, "m")
    assert registry.snapshot().ready("another") == ()
    registry.lost("a")
    assert registry.snapshot().ready("m") == ()
    assert registry.snapshot().workers[0].state == "lost"
    registry.connected("a", describe("2"), now=9.0)
    assert [worker.incarnation for worker in heard] == ["1", "2"]


def test_a_loads_report_does_not_outlive_its_worker() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    registry.connected("a", describe("1"), now=0.0)
    registry.heard("a", LoadReport(running=3), now=1.0)
    assert registry.snapshot().workers[0].load.running == 3
    assert registry.heard_at("a") == 1.0
    registry.lost("a")
    assert registry.snapshot().workers[0].load == LoadReport()


def test_snapshots_do_not_change_with_the_registry() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    before = registry.snapshot()
    first = registry.commit("a", prefill_tokens=100, sequences=1)
    registry.commit("a", prefill_tokens=30, sequences=2)
    first.end()
    first.end()
    assert (before.workers[0].in_flight, before.workers[0].dispatched) == (0, 0)
    after = registry.snapshot().workers[0]
    assert (after.in_flight, after.dispatched, after.prefill_tokens, after.sequences) == (1, 2, 30, 2)


def test_an_answered_prompt_is_no_prefill_any_more() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    leg = registry.commit("a", prefill_tokens=100, sequences=1)
    leg.prefilled()
    assert (registry.snapshot().workers[0].prefill_tokens, registry.snapshot().workers[0].sequences) == (0, 1)
    leg.end()
    assert (registry.snapshot().workers[0].prefill_tokens, registry.snapshot().workers[0].sequences) == (0, 0)


def test_what_comes_while_a_worker_is_at_a_step_is_in_none_until_the_next() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")

    def unbegun() -> int:
        return registry.snapshot().workers[0].unbegun_tokens

    registry.connected("a", describe("1"), now=0.0)
    registry.heard("a", LoadReport(steps=7), 0.0)
    registry.commit("a", prefill_tokens=100, sequences=1)  # at rest, it begins at once
    assert unbegun() == 0
    second = registry.commit("a", prefill_tokens=50, sequences=1)
    assert unbegun() == 50
    registry.heard("a", LoadReport(steps=7), 0.1)  # a heartbeat amid the step
    assert unbegun() == 50
    registry.heard("a", LoadReport(steps=8, prompt_tokens=100), 0.2)
    assert unbegun() == 0

    registry.commit("a", prefill_tokens=20, sequences=1)
    second.end()
    assert unbegun() == 20
    registry.connected("a", describe("2"), now=1.0)
    assert unbegun() == 0


def test_a_worker_that_does_not_count_its_steps_has_begun_all_by_each_report() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    registry.commit_work("a", Work(0, 1, decoding=1))
    registry.commit("a", prefill_tokens=50, sequences=1)
    assert registry.snapshot().workers[0].unbegun_tokens == 50
    registry.heard("a", LoadReport(), 0.1)
    assert registry.snapshot().workers[0].unbegun_tokens == 0


def work_left(registry: WorkerRegistry) -> tuple[int, int]:
    [worker] = registry.snapshot().workers
    return worker.prefill_tokens, worker.prefill_quadratic


def test_what_a_worker_has_computed_is_no_work_any_more() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    registry.connected("a", describe("1"), now=0.0)
    registry.heard("a", LoadReport(prompt_tokens=1000), 0.0)  # for others, before us
    first = registry.commit_work("a", Work(8, 1, prefill_quadratic=10**2 - 2**2))
    second = registry.commit_work("a", Work(5, 1, prefill_quadratic=5**2))
    assert work_left(registry) == (13, 96 + 25)

    registry.heard("a", LoadReport(prompt_tokens=1003), 1.0)
    assert work_left(registry) == (10, 10**2 - 5**2 + 25)
    registry.heard("a", LoadReport(prompt_tokens=1003), 1.1)  # a heartbeat
    assert work_left(registry) == (10, 10**2 - 5**2 + 25)

    registry.heard("a", LoadReport(prompt_tokens=1010), 2.0)
    assert work_left(registry) == (3, 5**2 - 2**2)
    first.prefilled()
    assert work_left(registry) == (3, 5**2 - 2**2)
    registry.heard("a", LoadReport(prompt_tokens=1050), 3.0)
    second.end()
    assert work_left(registry) == (0, 0)


def test_a_prompt_of_unknown_shape_shrinks_too() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    registry.connected("a", describe("1"), now=0.0)
    registry.heard("a", LoadReport(), 0.0)
    commitment = registry.commit("a", prefill_tokens=8, sequences=1)

    registry.heard("a", LoadReport(prompt_tokens=3), 1.0)
    assert work_left(registry) == (5, 0)
    commitment.end()
    assert work_left(registry) == (0, 0)


def test_the_first_report_after_a_hello_takes_nothing_off() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    registry.connected("a", describe("1"), now=0.0)
    registry.commit_work("a", Work(8, 1, prefill_quadratic=64))

    registry.heard("a", LoadReport(prompt_tokens=5000), 1.0)

    assert work_left(registry) == (8, 64)


def test_the_operators_weights_outlive_the_worker() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    registry.connected("a", describe("1"), now=0.0)
    assert registry.snapshot().workers[0].weights == PRESETS["unified"]
    registry.set_weights("a", PRESETS["decode"])
    registry.lost("a")
    registry.connected("a", describe("2"), now=1.0)
    assert registry.snapshot().workers[0].weights == PRESETS["decode"]


def test_a_draining_worker_is_done_when_its_last_leg_ends() -> None:
    done: list[str] = []
    registry = WorkerRegistry(lambda _: None)
    for address in ("busy", "idle"):
        registry.expect(address)
        registry.connected(address, describe(address), now=0.0)
    leg = registry.commit("busy", prefill_tokens=1, sequences=1)
    for address in ("busy", "idle"):
        registry.drain(address, lambda name=address: done.append(name))
    assert done == ["idle"]
    assert registry.snapshot().ready("m") == ()
    assert registry.snapshot().workers[0].state == "draining"
    registry.lost("busy")
    assert registry.snapshot().workers[0].state == "lost"
    leg.end()
    assert done == ["idle", "busy"]


def test_a_worker_that_says_it_drains_gets_no_new_work() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    registry.connected("a", describe("1"), now=0.0)
    registry.heard("a", LoadReport(draining=True), now=1.0)
    assert registry.snapshot().workers[0].state == "draining"
    assert registry.snapshot().ready("m") == ()
    registry.connected("a", describe("2"), now=2.0)
    assert registry.snapshot().workers[0].state == "ready"


def test_news_is_whatever_changes_who_takes_new_work() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    told: list[str] = []
    with registry.heeding(lambda: told.append("first")), registry.heeding(lambda: told.append("second")):

        def is_news(change: Callable[[], None]) -> bool:
            told.clear()
            change()
            assert told in ([], ["first", "second"])
            return bool(told)

        assert is_news(lambda: registry.connected("a", describe("1"), now=0.0))
        assert not is_news(lambda: registry.heard("a", LoadReport(running=1), now=1.0))
        assert is_news(lambda: registry.heard("a", LoadReport(), now=2.5))  # it was silent
        assert is_news(lambda: registry.heard("a", LoadReport(draining=True), now=2.6))
        assert is_news(lambda: registry.heard("a", LoadReport(), now=2.7))
        assert is_news(lambda: registry.set_weights("a", PRESETS["decode"]))
        assert is_news(lambda: registry.lost("a"))
        assert not is_news(lambda: registry.lost("a"))
        assert is_news(lambda: registry.connected("a", describe("2"), now=3.0))
        assert is_news(lambda: registry.drain("a", list))
        assert is_news(lambda: registry.forget("a"))
    told.clear()
    registry.tell_change()
    assert told == []


def test_who_is_at_an_address_is_whose_hello_was_the_last() -> None:
    registry = WorkerRegistry(lambda _: None)
    assert registry.incarnation("a") is None
    registry.expect("a")
    assert registry.incarnation("a") is None
    for life in ("1", "2"):
        registry.connected("a", describe(life), now=0.0)
        assert registry.incarnation("a") == life
        registry.lost("a")
    assert registry.incarnation("a") == "2"
    registry.forget("a")
    assert registry.incarnation("a") is None


def test_what_a_forgotten_worker_still_says_is_ignored() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    registry.forget("a")
    registry.heard("a", LoadReport(running=1), now=0.0)
    registry.lost("a")
    registry.commit("a", prefill_tokens=1, sequences=1).end()
    assert registry.snapshot().workers == ()
