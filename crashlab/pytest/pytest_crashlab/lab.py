"""Records programs, and explores their recordings, with the program ``crashlab``."""

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, List, Optional, Sequence, Union

import pytest

from .checks import Check, Checks

Program = Union[Sequence[Union[str, "os.PathLike[str]"]], Callable[[], object]]

#: Runs a pickled function where modules are found as in the test.
_RUN = "import pickle, sys; file = open(sys.argv[1], 'rb'); sys.path[:] = pickle.load(file); pickle.load(file)()"


class CrashlabError(Exception):
    """A program can't be recorded, or a check can't be used."""


class Lab:
    """Looks for the power cut that breaks a program."""

    def __init__(self, new_folder: Callable[[], Path], root: Path) -> None:
        self._new_folder = new_folder
        self._root = root

    def test(
        self,
        program: Program,
        check: Check,
        *,
        model: str = "posix",
        folder: Optional[Union[str, "os.PathLike[str]"]] = None,
        seconds: int = 30,
    ) -> None:
        """Fails the test with a report if a power cut breaks the program. The arguments are those of ``find``."""
        __tracebackhide__ = True
        report = self.find(program, check, model=model, folder=folder, seconds=seconds)
        if report is not None:
            pytest.fail(f"a power cut breaks it:\n{report}", pytrace=False)

    def find(
        self,
        program: Program,
        check: Check,
        *,
        model: str = "posix",
        folder: Optional[Union[str, "os.PathLike[str]"]] = None,
        seconds: int = 30,
    ) -> Optional[str]:
        """Runs ``program`` once, in a copy of ``folder`` or in an empty one: a command and its arguments, or a
        function of a module. Then runs ``check(files, printed)`` on what each power cut leaves: the folder with the
        files, which is also the working folder, and what the program had certainly printed. A check fails if it
        raises. Explores what ``model`` allows, and begins no state after these ``seconds``. Returns a report of the
        first state that fails.
        """
        __tracebackhide__ = True
        crashlab = _crashlab()
        place = self._new_folder()
        recording = place / "program.crashlab"
        if folder is None:
            folder = place / "empty"
            folder.mkdir()
        words = self._of_function(program, place) if callable(program) else [os.fspath(word) for word in program]
        recorded = subprocess.run(
            [crashlab, "record", "-o", str(recording), "--", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        print(recorded.stdout, end="")
        if recorded.returncode != 0 or not recording.exists():
            raise CrashlabError(recorded.stderr)
        return _explore([crashlab, "explore", "--model", model, "--seconds", str(seconds), str(recording)], check)

    def _of_function(self, program: Callable[[], object], place: Path) -> List[str]:
        __tracebackhide__ = True
        # With --import-mode=importlib, modules have names as seen from the root.
        path = [os.path.abspath(entry) for entry in [*sys.path, str(self._root)]]
        try:
            pickled = pickle.dumps(path) + pickle.dumps(program)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(f"a program is a function of a module, or functools.partial of one: {error}") from None
        file = place / "program.pickle"
        file.write_bytes(pickled)
        # Unbuffered: a line is a promise when it is printed. Without byte code, which would be recorded.
        return [sys.executable, "-u", "-B", "-c", _RUN, str(file)]


def _crashlab() -> str:
    __tracebackhide__ = True
    name = os.environ.get("CRASHLAB", "crashlab")
    found = shutil.which(name)
    if found is None:
        how = "install it (cargo install --locked crashlab; apt install fuse3), or name it in the variable CRASHLAB"
        raise CrashlabError(f"there is no program {name}: {how}")
    return os.path.abspath(found)


def _explore(command: List[str], check: Check) -> Optional[str]:
    __tracebackhide__ = True
    with Checks(check) as checks, tempfile.TemporaryFile() as report, tempfile.TemporaryFile() as errors:
        code = checks.serve(
            subprocess.Popen(
                [*command, "--check", checks.command],
                env={**os.environ, **checks.environment},
                stdin=subprocess.DEVNULL,
                stdout=report,
                stderr=errors,
            )
        )
        report.seek(0)
        errors.seek(0)
        if code == 0:
            return None
        if code == 1:
            return report.read().decode(errors="replace")
        raise CrashlabError(errors.read().decode(errors="replace"))
