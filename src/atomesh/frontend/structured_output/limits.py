"""What it may cost to compile one grammar, and how many may wait for it."""

COMPILE_CPU_S = 1.5
COMPILE_MEMORY = 128 * 2**20  # bytes of address space
LOAD_CPU_S = 20.0  # of a model's vocabulary, once
WAIT_S = 30.0  # on a busy machine
PROCESSES = 2
MOST_WAITING = 64
MAX_VOCABULARIES = 8
KEPT_VERDICTS = 4096
