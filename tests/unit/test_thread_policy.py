import subprocess
import sys

import pytest

from atomesh.thread_policy import limit_spinning


def test_threads_sleep_soon_by_default() -> None:
    environment: dict[str, str] = {}
    limit_spinning(environment)
    assert environment == {"GOMP_SPINCOUNT": "1000"}


@pytest.mark.parametrize("said", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_what_the_user_says_stays(said: dict[str, str]) -> None:
    environment = dict(said)
    limit_spinning(environment)
    assert environment == said


@pytest.mark.parametrize(("said", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_an_llm_says_it_before_torch_is_imported(said: dict[str, str], expected: str) -> None:
    program = (
        "import os, sys\n"
        "from atomesh import LLM\n"
        "print('torch' in sys.modules)\n"
        "class Seen:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': print(os.environ['GOMP_SPINCOUNT']); raise SystemExit\n"
        "sys.meta_path.insert(0, Seen())\n"
        "LLM('/nonexistent')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=said, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == (f"False\n{expected}\n", "")
