//! The daemon of a life: a process of its own, on an image in a file.

use crate::support::{Switch, TestFilesystem};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use syncline_device::{Background, FileDevice, OpenOptions, Spawn, Worker, WorkerOptions, block_on};
use syncline_fs::types::{Algorithm, Timestamp};
use syncline_fs::{AccessTime, Clock, Durability, Filesystem, Options, SystemClock};
use syncline_fuse::{DirectIo, MountOptions, Session, Synchronous, Transport};
use syncline_store::{Canary, Lab, Store, StoreOptions};

const MOUNT_POINT: &str = "SYNCLINE_PROGRAMS_MOUNT_POINT";
const IMAGE: &str = "SYNCLINE_PROGRAMS_IMAGE";
const CHOSEN: &str = "SYNCLINE_PROGRAMS_OPTIONS";
const CANARY: &str = "SYNCLINE_PROGRAMS_CANARY";
const SNAPSHOT: &str = "SYNCLINE_PROGRAMS_SNAPSHOT";
const READY: &str = "the test mount is ready";
const FAILED: &str = "the test mount failed: ";
const HOUR: Duration = Duration::from_secs(3600);

/// The options to try, alone and in pairs. Most are mount options; some set limits of the engine, or its
/// clock.
pub const OPTIONS: [&str; 20] = [
    "transport=uring",
    "direct_io=synced",
    "direct_io=write",
    "direct_io=always",
    "sync",
    "dirsync",
    "durability=ordered",
    "durability=strict",
    "compress=lz4",
    "compress=zstd",
    "discard",
    "noatime",
    "strictatime",
    "dirty=1MiB",
    "kept=0",
    "memtable=64KiB",
    "commit=soon",
    "writeback=soon",
    "inodes=4",
    "clock=jumps",
];

/// Nothing is written back or committed by age. For lives that must be alike, however long they take.
pub const UNHURRIED: &str = "by_age=never";

/// A time of day that is set every few looks, years forward or back.
#[derive(Default)]
struct JumpingClock {
    looks: AtomicU64,
}

impl Clock for JumpingClock {
    fn now(&self) -> Timestamp {
        const YEAR_SECONDS: i64 = 365 * 24 * 60 * 60;
        let years = [0, 7, -3, -40, 20][(self.looks.fetch_add(1, Ordering::Relaxed) / 8 % 5) as usize];
        let now = SystemClock.now();
        Timestamp { seconds: now.seconds + years * YEAR_SECONDS, ..now }
    }

    fn uptime(&self) -> Duration {
        SystemClock.uptime()
    }
}

struct Chosen {
    mount: MountOptions,
    fs: Options,
    store: StoreOptions,
}

impl Chosen {
    fn new(image: &Path) -> Self {
        let mut mount = MountOptions::new(image);
        mount.transport = Transport::Classic;
        Self { mount, fs: Options::default(), store: StoreOptions::default() }
    }

    fn apply(&mut self, option: &str) {
        let Self { mount, fs, store } = self;
        match option {
            "transport=uring" => mount.transport = Transport::Uring,
            "direct_io=synced" => mount.direct_io = DirectIo::Synced,
            "direct_io=write" => mount.direct_io = DirectIo::WriteOnly,
            "direct_io=always" => mount.direct_io = DirectIo::Always,
            "sync" => mount.synchronous = Synchronous::Everything,
            "dirsync" => mount.synchronous = mount.synchronous.max(Synchronous::Directories),
            "durability=ordered" => fs.durability = Durability::Ordered(5),
            "durability=strict" => fs.durability = Durability::Strict,
            "compress=lz4" => fs.compression = Some(Algorithm::Lz4),
            "compress=zstd" => fs.compression = Some(Algorithm::Zstd),
            "discard" => store.discard = true,
            "noatime" => fs.access_time = AccessTime::Never,
            "strictatime" => fs.access_time = AccessTime::Always,
            "dirty=1MiB" => (fs.dirty_bytes_max, fs.writeback_start_bytes) = (1 << 20, 1 << 17),
            "kept=0" => fs.kept_bytes_max = 0,
            "memtable=64KiB" => store.memtable_bytes = 64 << 10,
            "commit=soon" => store.checkpoint_interval = Duration::from_millis(20),
            "writeback=soon" => fs.writeback_age = Duration::from_millis(20),
            "inodes=4" => fs.cached_inodes_max = 4,
            "clock=jumps" => fs.clock = Arc::new(JumpingClock::default()),
            UNHURRIED => (store.checkpoint_interval, fs.writeback_age) = (HOUR, HOUR),
            other => panic!("no such option: {other}"),
        }
    }
}

/// The daemon's whole life. Called by the test named `daemon_process`.
pub fn run() {
    let Some(mount_point) = std::env::var_os(MOUNT_POINT) else { return };
    let image = PathBuf::from(std::env::var_os(IMAGE).unwrap());
    let mut chosen = Chosen::new(&image);
    let names = std::env::var(CHOSEN).unwrap();
    names.split(',').filter(|name| !name.is_empty()).for_each(|name| chosen.apply(name));
    let canary = std::env::var(CANARY).ok().map(|name| name.parse::<Canary>().unwrap());
    chosen.store.lab = Lab::breaking(canary);
    let Chosen { mut mount, fs, store } = chosen;
    let spawn: Arc<dyn Spawn> = Arc::new(Background::start(WorkerOptions::default()).unwrap());
    let snapshot = std::env::var(SNAPSHOT).ok();
    let read_only = snapshot.is_some();
    let device = FileDevice::open(&image, OpenOptions { read_only, ..OpenOptions::default() }).unwrap();
    let store = match &snapshot {
        Some(name) => block_on(Store::open_snapshot(device, store, spawn.clone(), name)).unwrap().0,
        None => block_on(Store::open(device, store, spawn.clone())).unwrap().0,
    };
    mount.kernel.read_only = read_only;
    let filesystem = block_on(Filesystem::open(store, spawn, fs)).unwrap();
    match Session::mount(filesystem.clone(), Path::new(&mount_point), &mount) {
        Ok(mounted) => {
            println!("{READY}");
            mounted.run_until_unmounted().unwrap();
            block_on(filesystem.close()).unwrap();
            block_on(filesystem.store().close()).unwrap();
            println!("closed");
        }
        Err(error) => println!("{FAILED}{error}"),
    }
}

/// Why nothing can be mounted here.
pub fn reason_to_skip() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can mount".into());
    }
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.err().map(|error| format!("/dev/fuse: {error}"))
}

/// True if this machine has FUSE over io_uring.
pub fn has_uring() -> bool {
    Worker::new(WorkerOptions::default()).is_ok_and(|worker| worker.has_ring()) && Switch::set(true).is_ok()
}

/// A running daemon and its mount.
pub struct Daemon {
    mount_point: PathBuf,
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Daemon {
    /// Mounts an image, or a snapshot in it.
    pub fn start(
        image: &Path,
        mount_point: &Path,
        options: &[&str],
        canary: Option<Canary>,
        snapshot: Option<&str>,
    ) -> Result<Self, String> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "programs::daemon_process", "--nocapture"]);
        command.env(MOUNT_POINT, mount_point).env(IMAGE, image).env(CHOSEN, options.join(","));
        canary.into_iter().for_each(|canary| _ = command.env(CANARY, canary.name()));
        snapshot.into_iter().for_each(|name| _ = command.env(SNAPSHOT, name));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let _switch = options.contains(&"transport=uring").then(|| Switch::set(true));
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        let mut told = None;
        for line in lines.by_ref().lines() {
            let line = line.unwrap();
            // The test harness prints before, without ending its line.
            if line.ends_with(READY) {
                return Ok(Self { mount_point: mount_point.to_owned(), process, lines });
            }
            told = line.split_once(FAILED).map(|(_, why)| why.to_owned()).or(told);
        }
        let _ = process.wait();
        Err(told.unwrap_or_else(|| "the daemon ended before it had mounted".into()))
    }

    /// Kills the daemon, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Unmounts; the daemon has to close its filesystem and end well.
    pub fn unmount(mut self) -> Result<(), String> {
        // The kernel may still be releasing files that a program has just closed.
        let unmounted = (0..500).any(|_| {
            let done = umount(&[], &self.mount_point);
            if !done {
                std::thread::sleep(Duration::from_millis(20));
            }
            done
        });
        if !unmounted {
            return Err("it can't be unmounted".into());
        }
        let closed = self.lines.by_ref().lines().any(|line| line.is_ok_and(|line| line == "closed"));
        let ended = self.process.wait().is_ok_and(|status| status.success());
        if closed && ended { Ok(()) } else { Err("the daemon did not end well".into()) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        umount(&["-l"], &self.mount_point);
    }
}

fn umount(options: &[&str], mount_point: &Path) -> bool {
    let mut command = Command::new("umount");
    command.args(options).arg(OsStr::new(mount_point)).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Makes an empty image.
pub fn make_image(path: &Path) {
    TestFilesystem::create(path, 64 << 20).close();
}
