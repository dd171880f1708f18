"""How long a compute thread spins for its next piece of work before it sleeps."""

from collections.abc import MutableMapping

# libgomp's own choice where threads outnumber the cores: some microseconds, then sleep. The cores are never
# all ours: other processes use them too, and a thread that spins keeps its partner, whose core was taken,
# from moving over. Measured on two busy cores, two threads, 135M parameters, one stream: 97 ms a step; asleep
# at once 95–160; spinning as long as libgomp does 275–870.
SPIN_COUNT = 1000


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """To be called before torch is imported, which reads it once. What the user says of spinning stays."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
