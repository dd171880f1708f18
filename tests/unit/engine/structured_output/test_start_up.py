"""Who is never asked for a grammar never loads what compiles them."""

import subprocess
import sys

PROGRAM = """
import sys
import atomesh.cli.worker, atomesh.engine.build, atomesh.mesh.gateway.app
print(*sorted({"llguidance", "atomesh.engine.structured_output.mask_maker"} & {*sys.modules}))
"""


def test_a_start_without_a_grammar() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.stderr) == ("atomesh.engine.structured_output.mask_maker\n", "")
