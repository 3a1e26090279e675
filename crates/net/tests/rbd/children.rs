//! Writers in processes of their own, which can be stopped and killed: this program once more.

use crate::rbd::cluster::Cluster;
use crate::rbd::records::{Stream, all_blocks, write_records};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use syncline_device::{DeviceExt, block_on};
use syncline_net::rbd::{Canary, RbdDevice, RbdOptions, RbdSpec};

const IMAGE: &str = "SYNCLINE_RBD_CHILD_IMAGE";
const CONF: &str = "SYNCLINE_RBD_CHILD_CONF";
const CANARY: &str = "SYNCLINE_RBD_CHILD_CANARY";
/// Longer than any test waits for its child.
const LIMIT: Duration = Duration::from_secs(100);

/// The writer's number in its records.
pub const CHILD: u64 = 7;

/// The child process; without its variables it is a test that has nothing to do.
#[test]
fn child() {
    let Ok(image) = std::env::var(IMAGE) else { return };
    thread::spawn(|| {
        thread::sleep(LIMIT);
        std::process::exit(3);
    });
    let spec = RbdSpec { conf: std::env::var_os(CONF).map(Into::into), ..RbdSpec::new("rbd", image) };
    let canary = match std::env::var(CANARY).as_deref() {
        Ok("automatic") => Some(Canary::AutomaticLock),
        Ok("unfenced") => Some(Canary::Unfenced),
        _ => None,
    };
    let name_wait = Duration::from_secs(20);
    let options = RbdOptions { canary, name_wait, ..RbdOptions::default() };
    let device = RbdDevice::open(&spec, &options).expect("opened");
    // Directly, since the test harness keeps what is printed to itself.
    let say = |text: String| {
        let mut out = std::io::stdout().lock();
        out.write_all(format!("child {text}\n").as_bytes())
            .and_then(|()| out.flush())
            .expect("somebody listens");
    };
    let never = AtomicBool::new(false);
    let Stream { error, .. } = write_records(&*device, CHILD, all_blocks(&*device), 64, &never, |count| {
        say(format!("acknowledged {count}"))
    });
    say(format!("ended {}", error.map_or_else(|| "full".to_owned(), |error| error.to_string())));
    let after = [
        block_on(device.write_at(0, vec![crate::rbd::records::record(CHILD, 0)])).is_ok(),
        block_on(device.flush_all()).is_ok(),
        block_on(device.read_at(0, 4096)).is_ok(),
    ];
    say(format!("after {}", after.into_iter().filter(|&good| good).count()));
    drop(device);
    say("closed".to_owned());
    std::process::exit(0);
}

/// A writer in another process. It is killed when this is dropped.
pub struct Writer {
    child: Child,
    lines: Receiver<String>,
    /// Of the last line that told.
    pub acknowledged: u64,
}

impl Writer {
    /// Starts one on an image that exists and that nobody has.
    pub fn start(cluster: &Cluster, spec: &RbdSpec, canary: Option<Canary>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "rbd::children::child", "--nocapture", "--test-threads", "1"]);
        command.env(IMAGE, &spec.image).env(CONF, cluster.conf());
        match canary {
            Some(Canary::AutomaticLock) => drop(command.env(CANARY, "automatic")),
            Some(Canary::Unfenced) => drop(command.env(CANARY, "unfenced")),
            None => {}
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program once more");
        let out = child.stdout.take().expect("a pipe");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix("child ") {
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        Self { child, lines, acknowledged: 0 }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until so many records are acknowledged.
    #[track_caller]
    pub fn wait_for(&mut self, count: u64) {
        while self.acknowledged < count {
            let line = self.line();
            assert!(line.starts_with("acknowledged"), "{line}");
        }
    }

    /// Waits for the end of the stream; returns why it ended.
    #[track_caller]
    pub fn wait_for_end(&mut self) -> String {
        loop {
            if let Some(why) = self.line().strip_prefix("ended ") {
                return why.to_owned();
            }
        }
    }

    /// The next line.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let line = self.lines.recv_timeout(Duration::from_secs(60)).expect("the child says something");
        if let Some(count) = line.strip_prefix("acknowledged ") {
            self.acknowledged = count.parse().expect("a number");
        }
        line
    }

    /// Takes the lines that the child has printed so far.
    pub fn catch_up(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            if let Some(count) = line.strip_prefix("acknowledged ") {
                self.acknowledged = count.parse().expect("a number");
            }
        }
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child is ours and has not been waited for, so the number is still its own.
        assert_eq!(unsafe { libc::kill(self.pid() as libc::pid_t, signal) }, 0);
    }

    /// Waits until the process has ended.
    #[track_caller]
    pub fn join(&mut self) {
        let started = Instant::now();
        while self.child.try_wait().expect("a child").is_none() {
            assert!(started.elapsed() < Duration::from_secs(60), "the child does not end");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LEAVES: &str = "SYNCLINE_RBD_CHILD_LEAVES";

/// The child process that ends while librbd works for it.
#[test]
fn leaving_child() {
    if std::env::var_os(LEAVES).is_none() {
        return;
    }
    let image = std::env::var(IMAGE).expect("an image");
    let spec = RbdSpec { conf: std::env::var_os(CONF).map(Into::into), ..RbdSpec::new("rbd", image) };
    let options = RbdOptions { wait: Some(Duration::from_secs(1)), ..RbdOptions::default() };
    // A function of `atexit` runs after the destructors of libraries that are loaded later.
    // SAFETY: the function may be called at exit: it uses nothing that is gone by then.
    unsafe { libc::atexit(take_time) };
    let device = RbdDevice::open(&spec, &options).expect("opened");
    eprintln!("opened");
    std::io::stdin().read_line(&mut String::new()).expect("somebody asks");
    block_on(device.enlarge_to(8 << 20)).expect_err("the cluster is away");
    drop(device);
    std::process::exit(7);
}

extern "C" fn take_time() {
    thread::sleep(Duration::from_secs(3));
}

/// A process that ends without having closed its image. It is killed when this is dropped.
pub struct Leaver {
    child: Child,
    told: BufReader<std::process::ChildStderr>,
}

impl Leaver {
    /// Starts one on an image that exists and that nobody has.
    pub fn start(cluster: &Cluster, spec: &RbdSpec) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "rbd::children::leaving_child", "--nocapture", "--test-threads", "1"]);
        command.env(IMAGE, &spec.image).env(CONF, cluster.conf()).env(LEAVES, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let told = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut leaver = Self { child, told };
        leaver.wait_for("opened");
        leaver
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            assert!(self.told.read_line(&mut line).expect("text") > 0, "it ended before {word:?}");
        }
    }

    /// Has it enlarge the image, which it gives up, and close it, which it gives up too. How it ended;
    /// `None` if by a signal.
    pub fn exit_code(mut self) -> Option<i32> {
        self.child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it listens");
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Leaver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
