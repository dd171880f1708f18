"""Create .venv and install ATOMesh into it at the versions of constraints.txt. Run by make; needs Python.

torch comes first and alone: its index may differ from pip's own, and on Linux the default build is CUDA's,
several GB, which is said before it is fetched.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
OLDEST = (3, 11)
PAUSE_S = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", required=True, help="requirement for torch, with its version")
    parser.add_argument("--torch-index-url", default="", help="index to take torch from; empty: pip's own")
    parser.add_argument("--extra", default="", help="extra of the project to install")
    arguments = parser.parse_args()
    if sys.version_info < OLDEST:
        sys.exit(
            f"ATOMesh needs Python 3.11 or newer, not {platform.python_version()}: make PYTHON=python3.12 …"
        )
    create_venv()
    if not is_installed(arguments.torch):
        install_torch(arguments.torch, arguments.torch_index_url)
    install_project(arguments.extra)


def create_venv() -> None:
    if PYTHON.exists():
        return
    say("creating .venv")
    try:
        venv.create(VENV, with_pip=True, symlinks=True)
    except subprocess.CalledProcessError:
        sys.exit("Python's venv module cannot make an environment here; on Debian and Ubuntu: "
                 "apt-get install python3-venv")  # fmt: skip


def is_installed(requirement: str) -> bool:
    name, _, version = requirement.partition("==")
    shown = pip_output("list", "--format", "json")
    installed = {row["name"].lower(): row["version"] for row in json.loads(shown)}
    have = installed.get(name.strip().lower())
    return have is not None and (not version or have.split("+")[0] == version.split("+")[0])


def install_torch(requirement: str, index_url: str) -> None:
    index = ["--index-url", index_url] if index_url else []
    if not index_url and sys.platform == "linux" and would_be_cuda(requirement):
        warn_of_cuda()
    say(f"installing {requirement}")
    constraints = [] if index_url else ["-c", "constraints.txt"]
    pip("install", *index, *constraints, requirement)


def would_be_cuda(requirement: str) -> bool:
    """Ask pip what it would take, without taking it. A CPU build says so in its version."""
    report = pip_output("install", "--dry-run", "--no-deps", "--quiet", "--report", "-", requirement)
    versions = [item["metadata"]["version"] for item in json.loads(report)["install"]]
    return not all("+cpu" in version for version in versions) and platform.machine() == "x86_64"


def warn_of_cuda() -> None:
    say("pip's index offers torch's CUDA build here: it downloads and unpacks several GB.")
    say("For the CPU build, stop now (Ctrl-C) and set TORCH_INDEX_URL as the README says.")
    if sys.stdin.isatty():
        say(f"Going on in {PAUSE_S} s.")
        time.sleep(PAUSE_S)


def install_project(extra: str) -> None:
    target = f".[{extra}]" if extra else "."
    say(f"installing atomesh{target[1:]} and what it needs")
    pip("install", "-c", "constraints.txt", "-e", target)


def pip(*arguments: str) -> None:
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run([*command, "--quiet"], cwd=ROOT, check=False).returncode:
        sys.exit("installation failed: pip's words are above; mend it and run make again")


def pip_output(*arguments: str) -> str:
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"pip {arguments[0]} failed:\n{done.stderr}")
    return done.stdout


def say(line: str) -> None:
    print(f"[setup] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
