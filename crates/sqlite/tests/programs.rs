//! The extension as a file that programs load: SQLite's shell, and Python.

use crate::sqlite::{name, sqlite};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The shared library that cargo has built beside this program.
fn extension() -> PathBuf {
    let built = std::env::current_exe().unwrap();
    let built = built.parent().unwrap();
    let file = "libsyncline_sqlite.so";
    let found = [built.join(file), built.join("..").join(file)].into_iter().find(|file| file.exists());
    found.unwrap_or_else(|| panic!("{file} is not in {}", built.display()))
}

fn has(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("SKIPPED: there is no '{program}' here");
    }
    there
}

/// SQLite's shell with the extension.
fn shell() -> Command {
    let mut shell = Command::new("sqlite3");
    shell.args([":memory:", "-batch", "-cmd"]).arg(format!(".load {}", extension().display()));
    shell
}

/// Runs commands in the shell; returns what it printed.
fn run_shell(commands: &str) -> String {
    let mut running =
        shell().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    let output = running.wait_with_output().unwrap();
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// A Python whose SQLite loads extensions.
fn python() -> Option<&'static str> {
    let test = "import sqlite3, sys; sys.exit(not hasattr(sqlite3.Connection, 'enable_load_extension'))";
    let loads =
        |python: &&str| Command::new(python).args(["-c", test]).status().is_ok_and(|status| status.success());
    let found = ["python3", "/usr/bin/python3"].into_iter().find(loads);
    if found.is_none() {
        eprintln!("SKIPPED: there is no Python here whose sqlite3 loads extensions");
    }
    found
}

#[test]
fn the_shell_loads_it() {
    if !has("sqlite3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.img").display().to_string();
    let said = run_shell(&format!(
        ".open '{}'\ncreate table t(a);\ninsert into t values(42);\nselect syncline_snapshot('monday');\n\
         select a from t;\npragma integrity_check;\n.open '{}'\nselect a + 1 from t;\n",
        name(&image, "a.db", "&create=64MiB"),
        name(&image, "a.db", "&snapshot=monday"),
    ));
    assert_eq!(said, "monday\n42\nok\n43\n");
}

#[test]
fn the_entry_point_with_the_name_of_the_file_works() {
    if !has("sqlite3") {
        return;
    }
    let mut shell = Command::new("sqlite3");
    shell.args([":memory:", "-batch", "-cmd"]);
    shell.arg(format!(".load {} sqlite3_synclinesqlite_init", extension().display()));
    let output = shell.arg("select syncline_last_error() = ''").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n");
}

#[test]
fn it_can_be_the_default() {
    if !has("sqlite3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    syncline::Filesystem::create(path("app.img"), 64 << 20, &Default::default()).unwrap().close().unwrap();
    // Connections that are opened from then on have it.
    let said = run_shell(&format!(
        ".load {} sqlite3_synclinedefault_init\n.open {}\ncreate table t(a);\ninsert into t values(1);\n\
         attach '{}' as host;\ncreate table host.h(a);\ninsert into h values(2);\ncreate temp table x(a);\n\
         select a from t union all select a from h;\n",
        extension().display(),
        path("app.img/app.db"),
        path("host.db"),
    ));
    assert_eq!(said, "1\n2\n");
    assert!(std::path::Path::new(&path("host.db")).exists());
}

#[test]
fn another_process_is_refused_and_told_about_the_mount() {
    let Some(sqlite) = sqlite() else { return };
    if !has("sqlite3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.img").display().to_string();
    let connection = sqlite.open_in(&image, "a.db", "&create=64MiB");
    connection.run("create table t(a)");
    let open = format!(".open '{}'\n", name(&image, "a.db", ""));
    let said = run_shell(&format!("{open}.open :memory:\nselect syncline_last_error();\n"));
    let process = format!("process {}", std::process::id());
    assert!(said.contains(&process) && said.contains("syncline mount"), "{said}");
    drop(connection);
    let said = run_shell(&format!("{open}insert into t values(1);\nselect count(*) from t;\n"));
    assert_eq!(said, "1\n");
}

#[test]
fn a_killed_process_leaves_every_commit() {
    let Some(sqlite) = sqlite() else { return };
    if !has("sqlite3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.img").display().to_string();
    for (mode, options) in
        [("delete", ""), ("wal", ""), ("truncate", "&journal=file"), ("delete", "&memory=1MiB")]
    {
        let file = format!("{mode}{}.db", options.len());
        let connection = sqlite.open_in(&image, &file, &format!("{options}&create=64MiB"));
        connection.run(&format!("pragma journal_mode = {mode}; create table t(a integer primary key, b)"));
        drop(connection);
        let mut answered = 0;
        for round in 0..5 {
            let mut running = shell().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut input = running.stdin.take().unwrap();
            let open = name(&image, &file, options);
            writeln!(input, ".open '{open}'\npragma synchronous = full;").unwrap();
            let mut commands = String::new();
            for row in answered + 1..answered + 200 {
                commands += &format!("begin;\ninsert into t values({row}, randomblob(5000));\n");
                commands += &format!(
                    "update t set b = randomblob(3000) where a > {row} - 100;\ncommit;\nselect {row};\n"
                );
            }
            // It stops reading when it is killed.
            let writing = std::thread::spawn(move || input.write_all(commands.as_bytes()));
            let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
            for _ in 0..7 + round * 3 {
                answered = lines.next().unwrap().unwrap().parse().unwrap();
            }
            running.kill().unwrap();
            running.wait().unwrap();
            writing.join().unwrap().ok();
            let connection = sqlite.open_in(&image, &file, options);
            connection.require_sound();
            let there = connection.number("select max(a) from t");
            assert!(there >= answered, "{mode}: {answered} was answered, and {there} is there");
            assert_eq!(connection.number("select count(*) from t"), there);
            answered = there;
        }
    }
}

#[test]
fn python_loads_it() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = "
import sqlite3, sys, threading
extension, image = sys.argv[1:]
loader = sqlite3.connect(':memory:')
loader.enable_load_extension(True)
loader.load_extension(extension)
name = f'file:app.db?vfs=syncline&image={image}'
first = sqlite3.connect(name + '&create=64MiB', uri=True)
first.execute('create table t(a)')
def work():
    connection = sqlite3.connect(name, uri=True, timeout=30)
    for _ in range(20):
        with connection:
            connection.execute('insert into t values(1)')
    connection.close()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert first.execute('select count(*) from t').fetchone() == (80,)
assert first.execute('pragma integrity_check').fetchone() == ('ok',)
copy = sqlite3.connect(':memory:')
first.backup(copy)
assert copy.execute('select count(*) from t').fetchone() == (80,)
assert first.execute('select syncline_snapshot(?)', ('monday',)).fetchone() == ('monday',)
try:
    sqlite3.connect(name.replace('app.img', 'none.img'), uri=True)
except sqlite3.OperationalError:
    assert 'syncline mkfs' in loader.execute('select syncline_last_error()').fetchone()[0]
else:
    raise AssertionError('there is no such image')
print('all is well')
";
    let output = Command::new(python)
        .args(["-c", program])
        .arg(extension())
        .arg(folder.path().join("app.img"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    assert_eq!(said, "all is well\n");
}

/// A child of fork(2) that goes on with the parent's connections would write into the parent's log.
#[test]
fn a_forked_child_is_refused() {
    let (Some(python), Some(_)) = (python(), sqlite()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.img").display().to_string();
    let program = format!(
        r#"
import os, sqlite3
first = sqlite3.connect(":memory:")
first.enable_load_extension(True)
first.load_extension("{extension}")
uri = "file:a.db?vfs=syncline&image={image}&create=64MiB"
parent = sqlite3.connect(uri, uri=True, isolation_level=None)
parent.execute("create table t(a)")
child = os.fork()
if child == 0:
    failed = 0
    for attempt in (lambda: parent.execute("insert into t values(1)"), lambda: sqlite3.connect(uri, uri=True).execute("select * from t")):
        try:
            attempt()
        except sqlite3.Error:
            failed += 1
    parent.close()
    os._exit(failed)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
parent.execute("insert into t values(2)")
parent.close()
print(sqlite3.connect(uri, uri=True).execute("select a from t").fetchall())
"#,
        extension = extension().display(),
    );
    let output = Command::new(python).args(["-c", &program]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "[(2,)]", "{output:?}");
}
