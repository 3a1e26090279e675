"""Runs a check of the test in forks of its process, each for one state.

crashlab runs its checker, a shell command, a few hundred times. A new interpreter each time would take most of the
test's time. So the command only asks this process, and waits for the answer.
"""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from types import TracebackType
from typing import Callable, List, NoReturn, Optional, Type

Check = Callable[[Path, str], object]

#: Asks with the number of the shell's process, and reads the exit code from descriptor 3. Descriptor 4 is the output.
_ASK = (
    'exec 4>&1 && mkfifo "$CRASHLAB_ACKED.$$" && exec 3<>"$CRASHLAB_ACKED.$$" && rm "$CRASHLAB_ACKED.$$" && '
    'echo $$ >"$PYTEST_CRASHLAB" && read -r code <&3 || code=1; exit "$code"'
)


class Checks:
    """Answers the shells of one exploration."""

    command = _ASK

    def __init__(self, check: Check) -> None:
        self._check = check
        self._folder = tempfile.TemporaryDirectory(prefix="pytest-crashlab-")
        pipe = os.path.join(self._folder.name, "questions")
        os.mkfifo(pipe)
        self.environment = {"PYTEST_CRASHLAB": pipe}
        # Also for writing, so that it does not end when nobody asks.
        self._questions = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        self._forks: List[_Fork] = []

    def __enter__(self) -> "Checks":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for fork in self._forks:
            fork.kill()
            fork.answer()
        os.close(self._questions)
        self._folder.cleanup()

    def serve(self, crashlab: "subprocess.Popen[bytes]") -> int:
        """Answers until crashlab ends. Returns its exit code."""
        ended = os.pidfd_open(crashlab.pid)
        try:
            while crashlab.poll() is None:
                with selectors.DefaultSelector() as selector:
                    selector.register(ended, selectors.EVENT_READ)
                    selector.register(self._questions, selectors.EVENT_READ, self._begin)
                    for fork in self._forks:
                        selector.register(fork.ended, selectors.EVENT_READ, lambda fork=fork: self._end(fork))
                        # Nobody reads it any more if crashlab has ended the shell.
                        selector.register(fork.reply, selectors.EVENT_READ, lambda fork=fork: self._kill(fork))
                    for key, _ in selector.select():
                        if key.data is not None:
                            key.data()
            return crashlab.returncode
        finally:
            os.close(ended)
            if crashlab.poll() is None:
                crashlab.terminate()
                crashlab.wait()

    def _begin(self) -> None:
        for shell in os.read(self._questions, 1 << 16).split():
            try:
                self._forks.append(_Fork(f"/proc/{int(shell)}", self._check))
            except FileNotFoundError:
                pass  # crashlab has ended the shell.

    def _kill(self, fork: "_Fork") -> None:
        if fork in self._forks:  # It may have ended by itself, at the same moment.
            fork.kill()

    def _end(self, fork: "_Fork") -> None:
        self._forks.remove(fork)
        fork.answer()


class _Fork:
    """A fork of this process that checks one state, for a shell in /proc."""

    def __init__(self, shell: str, check: Check) -> None:
        variables = Path(shell, "environ").read_bytes().split(b"\0")
        values = dict(variable.split(b"=", 1) for variable in variables if b"=" in variable)
        self.reply = os.open(f"{shell}/fd/3", os.O_WRONLY)
        self._output = os.open(f"{shell}/fd/4", os.O_WRONLY | os.O_APPEND)
        with warnings.catch_warnings():
            # Other threads don't matter to what the check does.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            _run(check, os.fsdecode(values[b"CRASHLAB_DIR"]), os.fsdecode(values[b"CRASHLAB_ACKED"]), self._output)
        self.ended = os.pidfd_open(self._pid)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def answer(self) -> None:
        """Waits for its end, and tells the shell."""
        status = os.waitpid(self._pid, 0)[1]
        code = os.WEXITSTATUS(status)
        if os.WIFSIGNALED(status):
            code = 128 + os.WTERMSIG(status)
            os.write(self._output, f"signal {os.WTERMSIG(status)} ended the check\n".encode())
        try:
            os.write(self.reply, b"%d\n" % code)
        except BrokenPipeError:
            pass  # crashlab has ended the shell.
        for descriptor in (self.reply, self._output, self.ended):
            os.close(descriptor)


def _run(check: Check, directory: str, acked: str, output: int) -> NoReturn:
    """Checks a state, and ends this process."""
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = open(1, "w", errors="replace", closefd=False)
        os.chdir(directory)
        result = check(Path(directory), Path(acked).read_text(errors="replace"))
        if result is None:
            code = 0
        else:
            print(f"the check returned {result!r}: it has to raise an exception, as assert does")
    except BaseException as error:
        # From the check on.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, trace)
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(code)
