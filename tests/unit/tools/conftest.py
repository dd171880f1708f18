"""The tools are scripts, not a package; those that write docs/results.md share the benchmarks' page."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[3] / directory) for directory in ("tools", "benchmarks")]
