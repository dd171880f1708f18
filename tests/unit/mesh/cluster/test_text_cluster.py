"""What one text model's requests see of the registry."""

from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.cluster.text_cluster import TextCluster
from atomesh.mesh.placement.placement import candidates
from atomesh.protocol.worker import LoadReport, ModelDescription, WorkerDescription

NOW = 10.0


def text_model(name: str) -> ModelDescription:
    return ModelDescription(
        name=name,
        path="",
        architecture="",
        dtype="text",
        vocab_size=0,
        max_model_len=0,
        eos_token_ids=(),
        block_size=32,
        num_blocks=0,
    )


def served(*models: str, slots: int = 0) -> WorkerDescription:
    texts = tuple(map(text_model, models))
    return WorkerDescription(
        worker_id="w", incarnation="i", pid=0, role="unified", model=texts[0], texts=texts, max_num_seqs=slots
    )


def registry_of(**servers: WorkerDescription) -> WorkerRegistry:
    registry = WorkerRegistry(lambda _: None)
    for address, description in servers.items():
        registry.expect(address)
        registry.connected(address, description, NOW)
    return registry


def test_a_server_is_seen_by_each_of_its_models_and_by_no_dispatcher_of_tokens() -> None:
    registry = registry_of(a=served("large", "small"), b=served("small"))

    assert [one.address for one in TextCluster("large", registry).snapshot().ready("large")] == ["a"]
    assert [one.address for one in TextCluster("small", registry).snapshot().ready("small")] == ["a", "b"]
    assert TextCluster("small", registry).snapshot().workers[0].model_name == "small"
    assert registry.snapshot().ready("large") == ()


def test_a_server_is_full_with_as_many_requests_as_it_has_slots() -> None:
    registry = registry_of(a=served("m", slots=2), b=served("m", slots=1))
    cluster = TextCluster("m", registry)
    held = [registry.commit(address, prefill_tokens=1, sequences=1) for address in ("a", "a", "b")]

    assert candidates("m", cluster.snapshot(), NOW).fresh == ()
    assert len(candidates("m", cluster.snapshot(), NOW).ready) == 2

    held[1].end()
    assert [one.address for one in candidates("m", cluster.snapshot(), NOW).fresh] == ["a"]


def test_what_has_left_or_serves_something_else_now_is_forgotten() -> None:
    registry = registry_of(a=served("m"), b=served("m"))
    cluster = TextCluster("m", registry)
    assert len(cluster.snapshot().workers) == 2

    registry.forget("a")
    registry.connected("b", served("other"), NOW)
    registry.heard("b", LoadReport(), NOW)
    assert cluster.snapshot().workers == ()

    registry.connected("b", served("m"), NOW)
    assert [one.address for one in cluster.snapshot().workers] == ["b"]
