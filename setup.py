"""Compiles the C++ kernels into a wheel, where there is a compiler; without one torch computes, more slowly.

A checkout that is installed to be edited compiles them at first use instead.
"""

import platform
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCE = Path(__file__).resolve().parent / "src"
sys.path.insert(0, str(SOURCE))  # what compiles needs nothing that is not there yet

from atomesh.engine.kernels.compiling import PACKAGED, compiled_object, find_compiler, object_stem  # noqa: E402
from atomesh.engine.kernels.instruction_set import BEST_FIRST  # noqa: E402
from atomesh.errors import ConfigurationError  # noqa: E402

COMPILER = find_compiler() if (sys.platform, platform.machine()) == ("linux", "x86_64") else None


class BuildWithKernels(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode or COMPILER is None:
            return
        directory = Path(self.build_lib) / "atomesh" / "engine" / "kernels" / "built"
        for instructions in BEST_FIRST:
            try:
                made = compiled_object(instructions, COMPILER, directory)
            except (OSError, ConfigurationError) as error:
                sys.stderr.write(f"no {instructions.name} kernels in this wheel: {error}\n")
                continue
            made.rename(directory / f"{object_stem(instructions)}-{PACKAGED}.so")
        for lock in directory.glob("*.lock"):
            lock.unlink()


class CarriesObjects(Distribution):
    def has_ext_modules(self) -> bool:
        return COMPILER is not None


class WheelForThisPlatform(bdist_wheel):
    """Of any Python 3, since nothing links against it; of this platform, if it carries objects."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(distclass=CarriesObjects, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelForThisPlatform})
