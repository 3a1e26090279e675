#!/usr/bin/env python3
"""A checker for crashlab.

It runs a few hundred times, each time in a new folder with the files that a power cut has left; it may change them.
Exit code 0 says that all is well. What it prints goes into the report.
"""
import os
import sys
@SEEN@

# The files to look at.
FILES = [@FILES@]
if not FILES:
    sys.exit("this checker looks at nothing yet: name a file in FILES")

# Every line that the program had printed for certain before the power cut. A line is a promise: what it reports must
# survive.
with open(os.environ["CRASHLAB_ACKED"], errors="replace") as file:
    promises = file.read().splitlines()

for name in FILES:
    # Open the file as the program does after a crash, so that the program's own recovery runs: call the program, or
    # use its library, as in sqlite3.connect(name).
    contents = open(name, "rb").read() if os.path.exists(name) else b""

    # What was promised must be there.
    if promises and not contents:
        sys.exit(f"{name} is missing or empty, and the program had printed: {promises[-1]}")
    # Demand what the last promise says. If it says "saved 3", and the file "version 2", the third version is lost:
    #     if int(contents.split()[1]) < int(promises[-1].split()[1]):
    #         sys.exit(f"{promises[-1]!r} is lost")

    # What is there must be whole:
    #     json.loads(contents)

    # Accept every honest state in between: no file before the first promise, the old contents, and contents that are
    # newer than the last promise.
