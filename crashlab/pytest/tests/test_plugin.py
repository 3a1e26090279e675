"""The plugin with the real crashlab, in tests as users write them."""

import importlib.util
from pathlib import Path

import pytest

STORE = '''
import os, time
from functools import partial
from pathlib import Path

def save(with_sync=False):
    for number in range(1, 3):
        with open("settings.new", "w") as file:
            file.write(f"version {number}\\n" * 1000)
            if with_sync:
                file.flush()
                os.fsync(file.fileno())
        os.rename("settings.new", "settings")
        folder = os.open(".", os.O_RDONLY)
        os.fsync(folder)
        print("saved", number)

def check(files, printed):
    assert Path.cwd() == files
    lines = Path("settings").read_text().splitlines() if Path("settings").exists() else []
    saved = [int(line.split()[1]) for line in printed.splitlines()]
    assert len(lines) == 1000 or not saved and not lines, f"settings have {len(lines)} lines"
    assert not saved or int(lines[0].split()[1]) >= saved[-1]
'''


def run(pytester: pytest.Pytester, test: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(store=STORE)
    pytester.makepyfile(test_it=f"import os, sys, time, pytest\nfrom store import *\n{test}")
    return pytester.runpytest_subprocess("-p", "pytest_crashlab", "-p", "no:cacheprovider", *options)


def test_a_planted_bug_is_reported(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_save(crashlab): crashlab.test(save, check, model='xfs', seconds=3600)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "a power cut breaks it:",
            "State * fails: a power cut after event *.",
            "The checker says:",
            "*store.py*",
            "*settings have 0 lines*",
            "Missing: fsync of settings.new after *",
        ]
    )
    # The recording is kept.
    line = next(line for line in result.outlines if line.startswith("To look at its files: crashlab extract "))
    assert Path(line.split()[7]).is_file()


def test_a_correct_program_passes(pytester: pytest.Pytester) -> None:
    test = """
def test_save(crashlab):
    crashlab.test(partial(save, with_sync=True), check, seconds=2)

def test_find(crashlab):
    assert "Missing: fsync of settings.new" in crashlab.find(save, check, seconds=3600)
"""
    run(pytester, test).assert_outcomes(passed=2)


def test_a_command_starts_from_a_copy_of_a_folder(pytester: pytest.Pytester) -> None:
    test = """
def test_save(crashlab, tmp_path):
    (tmp_path / "settings").write_text("old")
    def whole(files, printed):
        assert (files / "settings").read_text() in ("old", "new\\n")
    program = ["sh", "-c", "[ -f settings ] && echo new >draft && mv draft settings"]
    report = crashlab.find(program, whole, folder=tmp_path, seconds=3600)
    assert "AssertionError: assert '' in ('old', 'new\\\\n')" in report
    assert [file.name for file in tmp_path.iterdir()] == ["settings"]
    assert (tmp_path / "settings").read_text() == "old"
"""
    run(pytester, test).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "check, said",
    [
        ("lambda files, printed: sys.exit('never right')", "*SystemExit: never right"),
        ("lambda files, printed: True", "*the check returned True: it has to raise an exception*"),
        ("lambda files, printed: os.kill(os.getpid(), 11)", "*signal 11 ended the check"),
        ("lambda files: None", "*TypeError: *takes 1 positional argument*"),
    ],
)
def test_a_check_that_always_fails_is_refused(pytester: pytest.Pytester, check: str, said: str) -> None:
    result = run(pytester, f"def test_save(crashlab): crashlab.test(save, {check})")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*CrashlabError: *the checker fails on the files as the program left them*", said])


def test_a_check_that_crashes_and_leaves_processes_behind_harms_nobody(pytester: pytest.Pytester) -> None:
    test = """
def crash(files, printed):
    if os.path.exists("settings") and os.path.getsize("settings") == 0:
        os.abort()
    os.chdir("/")

def test_save(crashlab):
    before = os.getcwd(), sorted(os.listdir("/proc/self/fd"))
    assert "signal 6 ended the check" in crashlab.find(save, crash, seconds=3600)
    assert before == (os.getcwd(), sorted(os.listdir("/proc/self/fd")))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
"""
    run(pytester, test).assert_outcomes(passed=1)


def test_a_check_that_never_ends_is_ended_with_its_shell(pytester: pytest.Pytester) -> None:
    test = """
import subprocess
from pytest_crashlab.checks import Checks

def hang(files, printed):
    while printed:
        time.sleep(1)

def test_save(tmp_path):
    crashlab, recording = os.environ.get("CRASHLAB", "crashlab"), str(tmp_path / "r.crashlab")
    subprocess.run([crashlab, "record", "-o", recording, "--", "sh", "-c", "echo x >a; echo ok"], cwd=tmp_path)
    with Checks(hang) as checks:
        words = [crashlab, "explore", "--timeout", "1", "--check", checks.command, recording]
        explore = subprocess.Popen(words, env={**os.environ, **checks.environment}, stderr=subprocess.PIPE)
        assert checks.serve(explore) == 2
        assert b"longer than 1 s" in explore.communicate()[1]
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
"""
    run(pytester, test).assert_outcomes(passed=1)


def test_a_program_that_fails_or_does_nothing_is_an_error(pytester: pytest.Pytester) -> None:
    test = """
def fail():
    raise OSError("no space")

def nothing():
    pass

def test_fail(crashlab): crashlab.test(fail, check)
def test_nothing(crashlab): crashlab.test(nothing, check)
def test_local(crashlab): crashlab.test(lambda: None, check)
def test_missing(crashlab): crashlab.test(["no-such-program"], check)
"""
    result = run(pytester, test)
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            "*OSError: no space",
            "*PROGRAM did nothing to the files*",
            "*TypeError: a program is a function of a module, or functools.partial of one: *",
            "*no-such-program can't be run*",
        ]
    )


def test_without_crashlab_the_test_fails_and_says_what_to_install(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRASHLAB", "no-such-crashlab")
    result = run(pytester, "def test_save(crashlab): crashlab.test(save, check)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*there is no program no-such-crashlab: install it (cargo install*"])


def test_modules_are_found_with_other_import_modes(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("cases")
    text = f"{STORE}\ndef test_save(crashlab): assert crashlab.find(save, check, seconds=3600)"
    (folder / "test_it.py").write_text(text)
    result = pytester.runpytest_subprocess("-p", "pytest_crashlab", "--import-mode=importlib", "-W", "error")
    result.assert_outcomes(passed=1)


@pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed")
def test_tests_run_in_parallel(pytester: pytest.Pytester) -> None:
    test = """
@pytest.mark.parametrize("number", range(2))
def test_save(crashlab, number):
    assert crashlab.find(save, check, seconds=3600)
"""
    run(pytester, test, "-n", "2", "-W", "error").assert_outcomes(passed=2)
