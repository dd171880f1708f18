"""What one rendering of a chat template may cost: a base, and more in proportion to what is rendered."""

from dataclasses import dataclass

MAX_TEMPLATE_BYTES = 256 * 2**10
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Seconds of processor, bytes of address space, characters of output, seconds that the parent waits."""

    cpu_s: float
    memory: int
    output: int
    wait_s: float

    @classmethod
    def for_request(cls, num_bytes: int) -> "TemplateLimits":
        """`num_bytes` is the size of all that is handed to the template."""
        cpu_s = 0.5 + 0.5 * num_bytes / _MIB
        return cls(
            cpu_s=cpu_s,
            memory=384 * _MIB + 24 * num_bytes,
            output=4 * _MIB + 4 * num_bytes,
            wait_s=20.0 + 10.0 * cpu_s,
        )
