"""What engines report, as metrics: sums that never fall, gauges of each worker, and bounded labels."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from atomesh.observability.engine_collector import EngineCollector, EngineReading
from atomesh.observability.running_totals import RunningTotals
from atomesh.protocol.worker import LoadReport, ModelDescription

MODEL = ModelDescription(
    name="m", path="", architecture="a", dtype="float32", vocab_size=10, max_model_len=64,
    eos_token_ids=(), block_size=16, num_blocks=100,
)  # fmt: skip


class Scraped:
    def __init__(self) -> None:
        self.workers: dict[str, LoadReport] = {}
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(self._read))

    def _read(self) -> list[EngineReading]:
        running = sum(load.running for load in self.workers.values())
        return [EngineReading("m", LoadReport(running=running), MODEL, self.workers)]

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"model_name": "m", **labels})


def load(count: int) -> LoadReport:
    return LoadReport(
        running=count,
        total_blocks=100,
        free_blocks=60,
        cached_blocks=10,
        held_blocks=25,
        reserved_blocks=4,
        quarantined_blocks=1,
        prefix_cache_queries=10 * count,
        prefix_cache_hits=4 * count,
        preemptions=count,
        steps=100 * count,
        prompt_tokens=6 * count,
        kv_transfers={"sent_committed": count},
        kv_refusals={"ticket_replayed": 2 * count},
    )


def test_every_name_of_the_contract_has_its_value() -> None:
    scraped = Scraped()
    scraped.workers = {"a": load(1), "b": load(2)}
    counted = {
        "vllm:num_requests_running": 3.0,
        "vllm:prefix_cache_queries_total": 30.0,
        "vllm:prefix_cache_hits_total": 12.0,
        "vllm:num_preemptions_total": 3.0,
        "atomesh_engine_steps_total": 300.0,
        "atomesh_computed_prompt_tokens_total": 18.0,
    }
    assert {name: scraped.value(name, engine="0") for name in counted} == counted
    assert scraped.value("atomesh_kv_transfers_total", outcome="sent_committed") == 3.0
    assert scraped.value("atomesh_kv_refusals_total", reason="ticket_replayed") == 6.0
    states = {
        state: scraped.value("atomesh_kv_blocks", worker="a", state=state)
        for state in ("free", "cached", "held", "reserved", "quarantined")
    }
    assert states == {"free": 60.0, "cached": 10.0, "held": 25.0, "reserved": 4.0, "quarantined": 1.0}
    shape = {"block_size": "16", "num_gpu_blocks": "100", "cache_dtype": "float32"}
    assert scraped.value("vllm:cache_config_info", engine="0", **shape) == 1.0
    adapters = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert scraped.value("vllm:lora_requests_info", engine="0", **adapters) == 1.0


def test_counters_go_on_when_a_worker_is_lost_or_begins_again() -> None:
    scraped = Scraped()
    seen = []
    for workers in (
        {"a": load(5), "b": load(2)},
        {"b": load(3)},  # a is lost
        {"a": load(1), "b": load(3)},  # and comes back as another
        {"a": load(2), "b": load(3), "c": load(1)},
    ):
        scraped.workers = workers
        seen.append(scraped.value("atomesh_engine_steps_total", engine="0"))
        words = scraped.value("atomesh_kv_transfers_total", outcome="sent_committed")
        assert seen[-1] == 100 * words
    assert seen == [700.0, 800.0, 900.0, 1100.0]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("abcdef"), st.dictionaries(st.sampled_from("xy"), st.integers(0, 50))
        ),
        max_size=12,
    )
)
def test_a_total_never_falls_and_few_workers_are_remembered(scrapes) -> None:
    totals = RunningTotals(max_workers=3)
    before: dict[str, float] = {}
    for workers in scrapes:
        now = totals.update(workers)
        assert all(now.get(name, 0.0) >= count for name, count in before.items())
        assert all(now[name] >= count for counts in workers.values() for name, count in counts.items())
        assert len(totals._last) <= 3
        before = dict(now)


def test_what_a_worker_makes_up_is_counted_as_other() -> None:
    scraped = Scraped()
    made_up = {f'x"\n{n}': 1 for n in range(250)}
    scraped.workers = {
        "a": LoadReport(
            kv_transfers={"sent_committed": 3, **made_up}, kv_refusals={"ticket_peer": 2, **made_up}
        )
    }
    samples = [
        (family.name, *sample.labels.values(), sample.value)
        for family in scraped.registry.collect()
        for sample in family.samples
        if family.name in ("atomesh_kv_transfers", "atomesh_kv_refusals")
    ]
    assert sorted(samples) == [
        ("atomesh_kv_refusals", "m", "other", 250.0),
        ("atomesh_kv_refusals", "m", "ticket_peer", 2.0),
        ("atomesh_kv_transfers", "m", "other", 250.0),
        ("atomesh_kv_transfers", "m", "sent_committed", 3.0),
    ]
