"""How much memory the processes of a server hold, as Linux counts it."""

from pathlib import Path

from atomesh.testing.pd_bench import PDBench


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["VmRSS"].split()[0]) * 1024


def lasting_bytes(bench: PDBench) -> dict[str, int]:
    """Of those that last: the gateway, and the workers by their ids. Helpers come and go."""
    workers = {worker["id"]: resident_bytes(worker["pid"]) for worker in bench.workers()}
    return {"gateway": resident_bytes(bench.gateway_pid()), **workers}
