//! The cluster that all tests of this program share.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::Duration;
use syncline_net::rbd::{RbdDevice, RbdOptions, RbdSpec};

/// The time after which a client without a sign of life counts as gone, in this cluster.
pub const WATCH: Duration = Duration::from_secs(10);
const MIB: u64 = 1 << 20;

/// A cluster that runs.
pub struct Cluster {
    folder: PathBuf,
}

/// Many tests use the cluster at once, or one that disturbs it.
static TURNS: RwLock<()> = RwLock::new(());

/// Runs a test on the cluster beside others.
pub fn on_the_cluster(limit: Duration, test: impl FnOnce(&'static Cluster) + Send + 'static) {
    with(|| TURNS.read().unwrap_or_else(PoisonError::into_inner), limit, test);
}

/// Runs a test that disturbs the cluster, alone.
pub fn alone_on_the_cluster(limit: Duration, test: impl FnOnce(&'static Cluster) + Send + 'static) {
    with(|| TURNS.write().unwrap_or_else(PoisonError::into_inner), limit, test);
}

fn with<T>(turn: impl FnOnce() -> T, limit: Duration, test: impl FnOnce(&'static Cluster) + Send + 'static) {
    let Some(cluster) = cluster() else { return };
    let _turn = turn();
    // A test that hangs has failed.
    let (sender, receiver) = channel();
    let name = thread::current().name().unwrap_or("test").to_owned();
    let running = thread::Builder::new().name(name).spawn(move || {
        test(cluster);
        let _ = sender.send(());
    });
    let running = running.expect("a thread");
    match receiver.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => panic!("the test did not end within {limit:?}"),
        _ => {
            if let Err(panic) = running.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ceph/cluster")
}

/// The cluster, started by the first caller; `None` where Ceph is not installed.
fn cluster() -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    let cluster = CLUSTER.get_or_init(|| {
        let missing = Command::new(script()).arg("missing").output().expect("bash");
        let said = String::from_utf8_lossy(&missing.stderr);
        match missing.status.code() {
            Some(0) => {}
            Some(77) => {
                eprintln!("skipped: {}", said.trim());
                return None;
            }
            _ => panic!("the script does not run: {said}"),
        }
        Some(Cluster::start())
    });
    if cluster.is_none() {
        eprintln!("skipped: the programs of Ceph are not installed");
    }
    cluster.as_ref()
}

/// The folder of the cluster that is stopped when this program ends. A program that is killed is
/// noticed by the script.
static RUNNING: OnceLock<PathBuf> = OnceLock::new();

extern "C" fn stop_at_exit() {
    let Some(folder) = RUNNING.get() else { return };
    let _ = Command::new(script()).arg("stop").arg(folder).stdin(Stdio::null()).status();
    let _ = std::fs::remove_dir_all(folder);
}

impl Cluster {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("syncline-ceph-").tempdir().expect("a temporary folder");
        let folder = folder.keep();
        RUNNING.set(folder.clone()).expect("one cluster");
        // SAFETY: the function may be called at exit: it uses nothing that is gone by then.
        unsafe { libc::atexit(stop_at_exit) };
        let mut start = Command::new(script());
        start.arg("start").arg(&folder).args(["--osds", "1", "--until", &std::process::id().to_string()]);
        start.env("SYNCLINE_CEPH_WATCH", WATCH.as_secs().to_string());
        succeed(start.stdin(Stdio::null()));
        Self { folder }
    }

    pub fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// A file in the cluster's folder.
    pub fn file(&self, name: &str, contents: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, contents).expect("written");
        path
    }

    /// An image of the pool `rbd`.
    pub fn spec(&self, image: &str) -> RbdSpec {
        RbdSpec { conf: Some(self.conf()), ..RbdSpec::new("rbd", image) }
    }

    /// An image of a name that no other test has.
    pub fn new_spec(&self) -> RbdSpec {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        self.spec(&format!("image-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// A new image, opened.
    pub fn create(&self, mib: u64, options: &RbdOptions) -> (RbdSpec, Arc<RbdDevice>) {
        let spec = self.new_spec();
        let device = RbdDevice::create(&spec, mib * MIB, options).expect("created");
        (spec, device)
    }

    /// Runs `ceph` with these words; returns what it prints.
    #[track_caller]
    pub fn ceph(&self, words: &str) -> String {
        self.ceph_with(&words.split(' ').collect::<Vec<_>>())
    }

    /// Runs `ceph` with these arguments; returns what it prints.
    #[track_caller]
    pub fn ceph_with(&self, arguments: &[&str]) -> String {
        succeed(Command::new("timeout").args(["60", "ceph", "-c"]).arg(self.conf()).args(arguments))
    }

    /// Runs `rbd` with these words; returns what it prints.
    #[track_caller]
    pub fn rbd(&self, words: &str) -> String {
        self.rbd_with(&words.split(' ').collect::<Vec<_>>())
    }

    /// Runs `rbd` with these arguments; returns what it prints.
    #[track_caller]
    pub fn rbd_with(&self, arguments: &[&str]) -> String {
        succeed(Command::new("timeout").args(["60", "rbd", "-c"]).arg(self.conf()).args(arguments))
    }

    /// Kills or starts OSD 0.
    pub fn osd(&self, action: &str) {
        succeed(Command::new(script()).arg("osd").arg(&self.folder).args(["0", action]).stdin(Stdio::null()));
    }
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}\n{err}");
    out.into_owned()
}
