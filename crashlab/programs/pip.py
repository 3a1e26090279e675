"""pip: a wheel is installed into a folder.

Promise: none of power cuts. By the specification of installed packages the file RECORD lists all files
with their hashes (https://packaging.python.org/specifications/recording-installed-packages/), so the
checker demands that they are there if RECORD is, and that RECORD is after pip has ended.
Install: apt install python3-pip
"""

import base64
import csv
import hashlib
import os
import subprocess
import sys
import zipfile

import records

WHEEL = "demo-1.0-py3-none-any.whl"
RECORD = "target/demo-1.0.dist-info/RECORD"


def hash_of(data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def setup():
    files = {
        "demo/__init__.py": "",
        "demo/data.py": "DATA = 1\n" * 300,
        "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{name},{hash_of(text.encode())},{len(text)}" for name, text in files.items()]
    files["demo-1.0.dist-info/RECORD"] = "\n".join([*lines, "demo-1.0.dist-info/RECORD,,", ""])
    with zipfile.ZipFile(WHEEL, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    os.mkdir("target")


def pip(*arguments):
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]


def work():
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--target", "target"]
    subprocess.run(pip("install", *options, WHEEL), check=True, stderr=subprocess.DEVNULL)
    print("installed", flush=True)


def check():
    if not os.path.exists(RECORD):
        sys.exit("the package was installed" if records.printed() else 0)
    with open(RECORD, newline="") as file:
        rows = list(csv.reader(file))
    if len(rows) < 5 or any(len(row) != 3 for row in rows):
        sys.exit(f"RECORD is damaged: {rows}")
    for name, expected, _ in rows:
        path = os.path.join("target", name)
        if not os.path.exists(path):
            sys.exit(f"{name} is missing")
        with open(path, "rb") as file:
            if expected and hash_of(file.read()) != expected:
                sys.exit(f"{name} is damaged")


def version():
    return subprocess.check_output(pip("--version"), text=True).split()[1]


records.main(setup, work, check, version)
