#!/usr/bin/env bash
# Mercurial 2.9, of PyPI. It needs Python 2.7 with its headers and pip, by default `python2.7`, or
# PYTHON2=/path/to/python2.7.
python2=${PYTHON2:-python2.7}
PIP="$("$python2" -c 'import sys; print(sys.executable)') -m pip --disable-pip-version-check"
. "$(dirname "$0")/lib.sh"

from_pypi mercurial 2.9 7078037ec51971c566dcf41c39d3052ecbc7ad1273605c166690ccd8bf80a622
mkdir -p "$built/mercurial-2.9"
cp -R mercurial-2.9/. "$built/mercurial-2.9"
cd "$built/mercurial-2.9"
$python2 setup.py --quiet build_ext --inplace
sed -i "1s|.*|#!$("$python2" -c 'import sys; print(sys.executable)')|" hg
