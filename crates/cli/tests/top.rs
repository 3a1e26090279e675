//! `syncline top` on a terminal: its screen, its keys, and what is left when it ends.

use crate::skip_if;
use crate::support::{LIMIT, Mount, Place, as_nobody, no_fuse, not_root, program, run, wait};
use pty_process::Size;
use pty_process::blocking::{Command, Pty, open};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A program on a terminal, and its screen.
struct Terminal {
    pty: Arc<Pty>,
    child: Child,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
}

impl Terminal {
    fn start(arguments: &[&str], directory: &Path) -> Self {
        let (pty, pts) = open().expect("a terminal");
        pty.resize(Size::new(40, 100)).expect("it is ours");
        let command = Command::new(env!("CARGO_BIN_EXE_syncline")).arg("top").arg(directory).args(arguments);
        let child = command.env("TERM", "xterm").spawn(pts).expect("the program starts");
        let pty = Arc::new(pty);
        let (sender, output) = channel();
        let reading = pty.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            // When the program has ended, reading from the terminal returns an error.
            while let Ok(count @ 1..) = (&*reading).read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        let (lines, columns) = (NonZero::new(40).unwrap(), NonZero::new(100).unwrap());
        Self { pty, child, output, screen: vt100::Parser::new(lines, columns, 0) }
    }

    fn text(&self) -> String {
        self.screen.screen().contents()
    }

    /// Waits until the screen is as wanted.
    #[track_caller]
    fn shows(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(started.elapsed() < LIMIT, "{what} does not come:\n{text}");
            if let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(100)) {
                self.screen.process(&bytes);
            }
        }
    }

    fn press(&mut self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).expect("the program reads");
    }

    /// Waits for the end; returns the exit code and the final screen.
    #[track_caller]
    fn end(mut self) -> (i32, String) {
        let code = wait(&mut self.child, LIMIT).unwrap_or_else(|| {
            let _ = self.child.kill();
            panic!("it does not end:\n{}", self.text())
        });
        while let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(300)) {
            self.screen.process(&bytes);
        }
        let screen = self.screen.screen();
        assert!(!screen.alternate_screen(), "the terminal has its own screen again");
        assert!(!screen.hide_cursor(), "the cursor is seen again");
        (code, self.text())
    }
}

/// A thread that syncs files until dropped.
struct Load(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Load {
    fn on(directory: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        std::fs::create_dir(directory.join("folder")).unwrap();
        let (often, seldom) = (directory.join("folder/often"), directory.join("folder/seldom"));
        let (often, seldom) = (File::create(often).unwrap(), File::create(seldom).unwrap());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for round in 0u64.. {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                often.write_all_at(&[round as u8; 8192], round % 64 * 8192).unwrap();
                often.sync_all().unwrap();
                if round % 3 == 0 {
                    seldom.write_all_at(&[round as u8; 8192], round % 64 * 8192).unwrap();
                    seldom.sync_data().unwrap();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self(stop, Some(thread))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

/// The number in the line that begins with a name, inside a panel.
fn value(text: &str, name: &str) -> Option<f64> {
    let rest = &text[text.find(&format!("{name} "))? + name.len()..];
    rest.split('│').next()?.trim().parse().ok()
}

fn ground() -> (Place, Mount) {
    let place = Place::with_image("128MiB");
    let mount = place.mount("mount");
    (place, mount)
}

#[test]
fn the_page_shows_what_happens_and_keys_do_what_they_say() {
    skip_if!(no_fuse());
    let (_place, mount) = ground();
    let load = Load::on(&mount.path);
    let mut top = Terminal::start(&["--interval", "0.5"], &mount.path);
    let text = top.shows("a page with files", |text| {
        text.contains("/folder/often") && text.contains("/folder/seldom") && text.contains("FSync")
    });
    for words in ["syncs and flushes", "latency", "log and checkpoints", "device", "memory", "requests/s"] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    let at = |words: &str| text.find(words).unwrap();
    assert!(at("/folder/often") < at("/folder/seldom"), "those synced most come first:\n{text}");
    let (fsyncs, issued) = (value(&text, "fsyncs/s").unwrap(), value(&text, "issued/s").unwrap());
    assert!(fsyncs >= 1.0 && issued >= 1.0, "{text}");
    top.press("+");
    top.shows("a longer interval", |text| text.contains("every 1 s"));
    top.press("--");
    top.shows("a shorter interval", |text| text.contains("every 0.2 s") || text.contains("every 0.5 s"));
    top.press("s");
    top.shows("another order", |text| text.contains("sort by mean") && text.contains("mean*"));
    top.press("h");
    top.shows("help", |text| text.contains("flushes that reached the device"));
    top.press("h");
    top.shows("no help", |text| !text.contains("flushes that reached the device"));
    top.press("p");
    top.shows("a pause", |text| text.contains("PAUSED"));
    drop(load);
    top.press("p");
    top.shows("silence", |text| value(text, "fsyncs/s") == Some(0.0) && !text.contains("PAUSED"));
    top.press("q");
    assert_eq!(top.end().0, 0);
    mount.unmount().ok();
}

#[test]
fn a_signal_ends_it_and_leaves_the_terminal_as_it_was() {
    skip_if!(no_fuse());
    let (_place, mount) = ground();
    for signal in [Signal::TERM, Signal::HUP] {
        let mut top = Terminal::start(&[], &mount.path);
        top.shows("a page", |text| text.contains("syncs and flushes"));
        assert!(top.screen.screen().alternate_screen());
        kill_process(Pid::from_child(&top.child), signal).unwrap();
        assert_eq!(top.end().0, 0);
    }
    mount.unmount().ok();
}

#[test]
fn it_does_not_outlive_its_terminal() {
    skip_if!(no_fuse());
    let (_place, mount) = ground();
    let mut top = Terminal::start(&[], &mount.path);
    top.shows("a page", |text| text.contains("syncs and flushes"));
    let Terminal { pty, mut child, output, .. } = top;
    // The terminal is closed once nobody has it open: the reading thread holds it until the program
    // writes once more.
    drop(pty);
    drop(output);
    assert!(wait(&mut child, LIMIT).is_some(), "it ends by itself");
    mount.unmount().ok();
}

#[test]
fn an_unmount_ends_it_with_a_word() {
    skip_if!(no_fuse());
    let (_place, mount) = ground();
    let mut top = Terminal::start(&["--interval", "0.2"], &mount.path);
    top.shows("a page", |text| text.contains("syncs and flushes"));
    mount.unmount().ok();
    let (code, text) = top.end();
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("it was unmounted, or its daemon has ended"), "{text}");
}

#[test]
fn a_killed_daemon_ends_it_with_a_word() {
    skip_if!(no_fuse());
    let (_place, mut mount) = ground();
    let mut top = Terminal::start(&["--interval", "0.2"], &mount.path);
    top.shows("a page", |text| text.contains("syncs and flushes"));
    mount.kill();
    let (code, text) = top.end();
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("it was unmounted, or its daemon has ended"), "{text}");
}

#[test]
fn one_page_is_text_of_the_wanted_size_and_one_interval_is_json() {
    skip_if!(no_fuse());
    let (_place, mount) = ground();
    let load = Load::on(&mount.path);
    let top = |options: &[&str]| {
        let mut command = program();
        command.arg("top").arg(&mount.path).args(["--interval", "0.5"]).args(options);
        run(command)
    };
    for (width, height) in [(60, 30), (80, 24), (120, 50)] {
        let (columns, lines) = (width.to_string(), height.to_string());
        let text = top(&["--once", "--width", &columns, "--height", &lines]).ok().out;
        assert!(text.lines().count() <= height, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        assert!(text.contains("/folder/often") && text.contains("fsyncs/s"), "{text}");
        assert!(!text.contains('\u{1b}'), "plain text");
    }
    let json: serde_json::Value = serde_json::from_str(&top(&["--json"]).ok().out).unwrap();
    let interval = &json["interval"];
    let number = |pointer: &str| interval.pointer(pointer).and_then(|value| value.as_f64()).expect(pointer);
    assert!((0.4..5.0).contains(&number("/seconds")), "{interval:#}");
    assert!(number("/syncs/fsyncs_per_second") > 1.0 && number("/syncs/fdatasyncs_per_second") > 0.3);
    let count = number("/spreads/fsync_us/count");
    let calls = number("/syncs/fsyncs_per_second") + number("/syncs/fdatasyncs_per_second");
    // A busy machine may read the counters and the distribution some time apart.
    let counted = calls * number("/seconds");
    assert!((count - counted).abs() <= 4.0 + counted / 2.0, "each call was measured: {interval:#}");
    assert!(number("/spreads/fsync_us/p50") > 0.0);
    assert!(number("/spreads/fsync_us/p50") <= number("/spreads/fsync_us/max"));
    assert!(number("/device/write_amplification") > 0.9, "{interval:#}");
    let files = json["files"]["list"].as_array().unwrap();
    let paths: Vec<_> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/folder/often", "/folder/seldom"]);
    assert!(files[0]["syncs"].as_u64() > files[1]["syncs"].as_u64());
    assert!(files[0]["bytes"].as_u64().unwrap() >= 8192 * files[0]["syncs"].as_u64().unwrap() / 2);
    drop(load);
    mount.unmount().ok();
}

#[test]
fn what_it_cannot_do_is_told() {
    skip_if!(no_fuse());
    let (place, mount) = ground();
    let mut command = program();
    command.arg("top").arg(&mount.path);
    run(command).fails(2, &["needs a terminal", "--once"]);
    let mut command = program();
    command.arg("top").arg(place.path()).arg("--once");
    run(command).fails(6, &["not on a mounted Syncline filesystem"]);
    mount.unmount().ok();
}

#[test]
fn strangers_see_figures_and_no_files() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    use std::os::unix::fs::PermissionsExt;
    let place = Place::with_image("64MiB");
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mount = place.mount("mount");
    let mut command = program();
    command.arg("top").arg(&mount.path).args(["--once", "--interval", "0.2"]);
    let text = run(as_nobody(command)).ok().out;
    assert!(text.contains("only root and the mount's owner") && text.contains("fsyncs/s"), "{text}");
    mount.unmount().ok();
}
