"""What the tests of stores written in Python share: the changes, and what must be left of them.

Change n writes a record with number n, and n as the record "count". A store with transactions does
both in one, so that "count" says which records must be there.
"""

import os
import sys

CHANGES = 6
SIZE = 400
COUNT = b"count"


def key(number):
    return b"key%04d" % number


def value(number):
    return (b"value-%d-" % number * SIZE)[:SIZE]


def variant():
    """The second argument, or None."""
    return sys.argv[2] if len(sys.argv) > 2 else None


def make_changes(write):
    """Calls write(n, records) for each change, and says so before and after it."""
    for number in range(1, CHANGES + 1):
        print("begins", number, flush=True)
        write(number, {key(number): value(number), COUNT: b"%d" % number})
        print("stored", number, flush=True)


def printed():
    """The lines that the program had printed before the power cut, each as a list of words."""
    with open(os.environ["CRASHLAB_ACKED"]) as file:
        return [line.split() for line in file]


def stored():
    """The number of the last change that the program had called stored."""
    return max((int(number) for word, number in printed() if word == "stored"), default=0)


def check_transactions(found):
    """Each change is there as a whole or not at all, in order, and none is lost that was stored."""
    count = int(found.get(COUNT, b"0"))
    if count < stored():
        sys.exit(f"change {stored()} was stored, and only {count} are there")
    expected = {key(number): value(number) for number in range(1, count + 1)}
    if count:
        expected[COUNT] = b"%d" % count
    check_equal(found, expected)


def check_after_sync(read):
    """Between two changes, all that was stored is there. During a change, anything may be."""
    lines = printed()
    if lines and lines[-1][0] == "begins":
        return
    expected = {key(number): value(number) for number in range(1, stored() + 1)}
    if stored():
        expected[COUNT] = b"%d" % stored()
    check_equal(read(), expected)


def check_equal(found, expected):
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            fault = "missing" if name not in found else "wrong" if name in expected else "too much"
            sys.exit(f"{name.decode(errors='replace')} is {fault}")


def main(setup, work, check, version):
    """Calls the function that the first argument names."""
    verb = sys.argv[1] if len(sys.argv) > 1 else None
    if verb == "setup":
        setup()
    elif verb == "work":
        work()
    elif verb == "check":
        check()
    elif verb == "version":
        print(version(), flush=True)
    else:
        sys.exit(f"Usage: {sys.argv[0]} setup|work|check|version [VARIANT]")
    # Without the end of the interpreter, which would close the store.
    os._exit(0)
