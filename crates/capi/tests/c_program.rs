//! A C program is compiled against the header and the libraries, and run. Not under valgrind: it
//! runs one thread at a time and lets no other run while one waits in io_uring, as the engine's
//! thread does.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, said(&output));
    said(&output)
}

/// True if a program can be started; otherwise prints that it can't.
fn has(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("SKIPPED: there is no '{program}' here");
    }
    there
}

/// Puts the libraries into a folder of their own, as they are installed.
fn libraries(folder: &Path) {
    let built = std::env::current_exe().expect("tests know where they are");
    let built = built.parent().expect("in a folder");
    for (name, links) in [
        ("libsyncline_c.so", &["libsyncline.so.0", "libsyncline.so"][..]),
        ("libsyncline_c.a", &["libsyncline.a"][..]),
    ] {
        let file = [built.join(name), built.join("..").join(name)].into_iter().find(|file| file.exists());
        let file = file.unwrap_or_else(|| panic!("{name} is not in {}", built.display()));
        for link in links {
            std::os::unix::fs::symlink(&file, folder.join(link)).unwrap();
        }
    }
}

fn compile(folder: &Path, program: &Path, libraries: &[&str]) -> Command {
    compile_source(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program.c"), folder, program, libraries)
}

fn compile_source(source: &Path, folder: &Path, program: &Path, libraries: &[&str]) -> Command {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(root().join("include"));
    cc.arg(source).arg("-o").arg(program);
    cc.arg("-L").arg(folder).args(libraries).arg("-lpthread");
    cc
}

fn execute(folder: &Path, command: &mut Command, images: &str, more: &[&str]) {
    let image = |number| folder.join(format!("{images}-{number}.img"));
    let said = run(command.env("LD_LIBRARY_PATH", folder).arg(image(1)).arg(image(2)).args(more));
    assert!(said.contains("all is well"), "{said}");
}

#[test]
fn a_c_program_runs_with_the_shared_library() {
    if !has("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    libraries(folder);
    let program = folder.join("program");
    run(&mut compile(folder, &program, &["-lsyncline"]));
    execute(folder, &mut Command::new(&program), "plain", &[]);
    execute(folder, &mut Command::new(&program), "threads", &["no-io-uring"]);
    let needs = Command::new("readelf").arg("-d").arg(&program).output();
    match needs {
        Ok(needs) => assert!(said(&needs).contains("[libsyncline.so.0]"), "{}", said(&needs)),
        Err(_) => eprintln!("SKIPPED: there is no 'readelf' here"),
    }
}

#[test]
fn a_c_program_runs_with_the_static_library() {
    if !has("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    libraries(folder);
    std::fs::remove_file(folder.join("libsyncline.so")).unwrap();
    let program = folder.join("program");
    run(&mut compile(folder, &program, &["-lsyncline", "-lm", "-ldl"]));
    std::fs::remove_file(folder.join("libsyncline.so.0")).unwrap();
    execute(folder, &mut Command::new(&program), "static", &[]);
}

#[test]
fn a_c_program_uses_an_export() {
    if !has("cc") || !has("nbdkit") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    libraries(folder);
    let (source, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/export.c"), folder.join("export"));
    run(&mut compile_source(&source, folder, &program, &["-lsyncline"]));
    let socket = folder.join("socket");
    // It ends when the program does.
    let mut server = Command::new("nbdkit");
    server.args(["--exit-with-parent", "--unix"]).arg(&socket).args(["memory", "64M", "--run"]);
    server.arg(format!("'{}' 'nbd+unix:///?socket={}'", program.display(), socket.display()));
    let said = run(server.env("LD_LIBRARY_PATH", folder));
    assert!(said.contains("all is well"), "{said}");
}

/// The program in docs/EMBEDDING.md, as it stands: it makes an image, and then opens it.
#[test]
fn the_program_of_the_documents_runs() {
    if !has("cc") {
        return;
    }
    let page = std::fs::read_to_string(root().join("docs/EMBEDDING.md")).unwrap();
    let (_, rest) = page.split_once("```c\n").expect("the page has a program");
    let (text, _) = rest.split_once("```").expect("it ends");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    libraries(folder);
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&source, text).unwrap();
    run(&mut compile_source(&source, folder, &program, &["-lsyncline"]));
    for _ in 0..2 {
        run(Command::new(&program).current_dir(folder).env("LD_LIBRARY_PATH", folder));
    }
    // The image that it wrote is there.
    assert_eq!(std::fs::metadata(folder.join("disk.img")).unwrap().len(), 64 << 20);
    std::fs::write(folder.join("disk.img"), "no image").unwrap();
    let refused = Command::new(&program).current_dir(folder).env("LD_LIBRARY_PATH", folder).output().unwrap();
    assert!(refused.status.code() == Some(1) && !refused.stderr.is_empty(), "{}", said(&refused));
}

#[test]
fn the_header_is_good_for_strict_c_and_for_cpp() {
    let header = "#include <libsyncline.h>\n#include <libsyncline.h>\n";
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    std::fs::write(&source, header).unwrap();
    for (compiler, language, standard) in [("cc", "c", "c99"), ("c++", "c++", "c++11")] {
        if has(compiler) {
            let mut command = Command::new(compiler);
            command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", language]);
            run(command.arg(format!("-std={standard}")).arg("-I").arg(root().join("include")).arg(&source));
        }
    }
}

/// The compiler refuses two differing declarations of one function, so it is given those of the
/// header and those in the library's source. A declaration that only one of them has is found by
/// name.
#[test]
fn the_header_declares_what_the_library_has() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        usize_is_size_t: true,
        no_includes: true,
        export: cbindgen::ExportConfig {
            item_types: vec![cbindgen::ItemType::Functions],
            ..cbindgen::ExportConfig::default()
        },
        ..cbindgen::Config::default()
    };
    let mut found = Vec::new();
    let bindings = cbindgen::Builder::new().with_crate(source).with_config(config).generate();
    bindings.expect("cbindgen reads the source").write(&mut found);
    let found = String::from_utf8(found).unwrap();
    let header = std::fs::read_to_string(root().join("include/libsyncline.h")).unwrap();
    let functions = |text: &str| {
        let calls = text.lines().filter(|line| !line.starts_with([' ', '*', '/']));
        let names = calls.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
        let mut names: Vec<_> =
            names.filter(|name| name.starts_with("syncline_")).map(str::to_owned).collect();
        names.sort();
        names
    };
    assert!(functions(&header).len() > 40, "{:?}", functions(&header));
    assert_eq!(functions(&header), functions(&found));
    if !has("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let both = folder.path().join("both.c");
    std::fs::write(&both, format!("#include <libsyncline.h>\n{found}")).unwrap();
    let check = |file: &Path| {
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-fsyntax-only", "-Wall", "-Werror", "-I"])
            .arg(root().join("include"))
            .arg(file);
        cc.output().unwrap()
    };
    let output = check(&both);
    assert!(output.status.success(), "{}", said(&output));
    // The compiler must find a difference.
    assert!(found.contains("uint64_t offset"), "{found}");
    std::fs::write(
        &both,
        format!("#include <libsyncline.h>\n{}", found.replace("uint64_t offset", "int offset")),
    )
    .unwrap();
    assert!(!check(&both).status.success());
}
