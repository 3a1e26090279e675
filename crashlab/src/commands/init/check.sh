#!/bin/sh
# A checker for crashlab.
#
# It runs a few hundred times, each time in a new folder with the files that a power cut has left; it may change them.
# Exit code 0 says that all is well. What it prints goes into the report.
@SEEN@

# The files to look at.
set -- @FILES@
if [ $# = 0 ]; then
    echo "this checker looks at nothing yet: name a file after 'set --'"
    exit 1
fi

# The last line that the program had printed for certain before the power cut; $CRASHLAB_ACKED has all of them. A line
# is a promise: what it reports must survive.
promise=$(tail -n 1 "$CRASHLAB_ACKED")

for name in "$@"; do
    # What was promised must be there.
    if [ -n "$promise" ] && [ ! -s "$name" ]; then
        echo "$name is missing or empty, and the program had printed: $promise"
        exit 1
    fi
    # Demand what the last promise says, and that the file is whole. Open it as the program does after a crash, so that
    # the program's own recovery runs: call the program.

    # Accept every honest state in between: no file before the first promise, the old contents, and contents that are
    # newer than the last promise.
done
