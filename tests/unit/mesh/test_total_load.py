from atomesh.mesh.cluster.total_load import total_load
from atomesh.protocol.worker import LoadReport


def test_no_load_is_no_load():
    assert total_load([]) == LoadReport()


def test_counts_add_up_and_the_longest_step_stands():
    first = LoadReport(running=1, total_blocks=8, kv_transfers={"committed": 2}, step_s=0.5)
    second = LoadReport(running=2, total_blocks=8, kv_transfers={"committed": 1, "expired": 3}, step_s=0.25)
    assert total_load([first, second]) == LoadReport(
        running=3, total_blocks=16, kv_transfers={"committed": 3, "expired": 3}, step_s=0.5
    )
