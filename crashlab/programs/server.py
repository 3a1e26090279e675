"""What the tests of servers share: a server that runs while a block of code does."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time


@contextlib.contextmanager
def running(command, ready, stop=subprocess.Popen.kill):
    """Runs the command until the end of the block.

    ready(directory) says whether the server answers; command(directory) returns its words. The directory
    is for sockets and for what else need not be recorded.
    """
    directory = tempfile.mkdtemp(prefix="server-")
    try:
        with open(directory + "/log", "w+") as log:
            process = subprocess.Popen(command(directory), stdout=log, stderr=log)
            try:
                wait(process, lambda: ready(directory), log)
                yield directory
            finally:
                stop(process)
                process.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def wait(process, ready, log):
    end = time.monotonic() + 60
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            log.seek(0)
            sys.exit(f"the server does not start: {log.read()[-2000:]}")
        time.sleep(0.02)
