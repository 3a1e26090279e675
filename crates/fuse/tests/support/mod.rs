//! Real mounts for tests: a daemon in a process of its own, so that a test can neither deadlock
//! with it (a page fault on a mapped file needs the daemon) nor leave it behind.

mod filesystem;
mod shell;
mod switch;

pub use filesystem::TestFilesystem;
pub use shell::{Caches, as_ordinary_user, pattern};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
pub use switch::Switch;
use syncline_device::{Worker, WorkerOptions};
use syncline_fuse::{MountOptions, Session, Transport};
use tempfile::TempDir;

const MOUNT_POINT: &str = "SYNCLINE_TEST_MOUNT_POINT";
const OVER_URING: &str = "SYNCLINE_TEST_URING";
const DIRECT_IO: &str = "SYNCLINE_TEST_DIRECT_IO";
const SYNCHRONOUS: &str = "SYNCLINE_TEST_SYNCHRONOUS";
const WORKERS: &str = "SYNCLINE_TEST_WORKERS";
const IMAGE: &str = "SYNCLINE_TEST_IMAGE";
const READY: &str = "the test mount is ready";
const FAILED: &str = "the test mount failed: ";
/// The user of unprivileged tests: nobody.
pub const ORDINARY_USER: u32 = 65534;

/// Size of the images; memory is taken only for written blocks.
const SIZE_BYTES: u64 = 4 << 30;
/// Size of the images that are files.
const FILE_BYTES: u64 = 64 << 20;

/// The daemon's whole life, in a process that [`TestMount`] started.
#[test]
#[ignore = "run as a process of its own by the other tests"]
fn daemon_process() {
    let Some(mount_point) = std::env::var_os(MOUNT_POINT) else { return };
    let filesystem = match std::env::var_os(IMAGE) {
        Some(path) => TestFilesystem::create(Path::new(&path), FILE_BYTES),
        None => TestFilesystem::new(SIZE_BYTES),
    };
    let mut options = MountOptions::new("/images/test image,1.img");
    options.direct_io = match std::env::var_os(DIRECT_IO) {
        Some(_) => syncline_fuse::DirectIo::Always,
        None => syncline_fuse::DirectIo::Never,
    };
    if std::env::var_os(SYNCHRONOUS).is_some() {
        options.synchronous = syncline_fuse::Synchronous::Everything;
    }
    if let Ok(workers) = std::env::var(WORKERS) {
        options.workers = workers.parse().unwrap();
    }
    let uring = std::env::var_os(OVER_URING).is_some();
    options.transport = if uring { Transport::Uring } else { Transport::Classic };
    match Session::prepare(filesystem.fs.clone(), Path::new(&mount_point), &options) {
        Ok(prepared) => {
            let early = prepared.session().counters().total().to_string();
            let mounted = prepared.serve();
            let texts = mounted.session().control();
            texts.register("early requests", move || early.clone());
            texts.register("stats", || format!("{{\"long\":\"{}\"}}", "x".repeat(100_000)));
            let transport = mounted.session().transport();
            texts.register("transport", move || transport.into());
            texts.register("panics", || panic!("on purpose"));
            let store = filesystem.fs.store().clone();
            texts.register("flushes", move || store.counters().flushes_issued.to_string());
            texts.register("sleeps", || sleeps().to_string());
            println!("{READY}");
            mounted.run_until_unmounted().unwrap();
            filesystem.close();
            println!("closed");
        }
        Err(error) => println!("{FAILED}{error}"),
    }
}

/// How many times the threads of this process have gone to sleep.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    let count = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    statuses.map(count).sum()
}

/// A mounted filesystem with a daemon of its own, over io_uring or over /dev/fuse.
pub struct TestMount<const URING: bool> {
    directory: TempDir,
    daemon: Child,
    output: DaemonOutput,
}

/// The output of a daemon.
pub struct DaemonOutput {
    lines: BufReader<std::process::ChildStdout>,
    /// Held until the daemon has mounted.
    switch: Option<Switch>,
}

/// How to mount.
#[derive(Clone, Copy)]
pub struct Setup {
    /// Run the daemon as this user.
    pub user: Option<u32>,
    /// Open every file for direct I/O.
    pub direct_io: bool,
    /// Let the kernel offer FUSE over io_uring, for tests of that transport.
    pub switched_on: bool,
    /// Make every change durable before it is answered.
    pub synchronous: bool,
    /// Keep the filesystem in a file, which [`TestMount::image`] names, and not in the daemon's
    /// memory.
    pub in_file: bool,
    /// Threads that serve requests; as many as CPUs if 0.
    pub workers: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            user: None,
            direct_io: false,
            switched_on: true,
            synchronous: false,
            in_file: false,
            workers: 0,
        }
    }
}

impl<const URING: bool> TestMount<URING> {
    /// Mounts, or prints why that is not possible here.
    pub fn or_skip() -> Option<Self> {
        Self::with(Setup::default())
    }

    /// Mounts with this setup, or prints why that is not possible here.
    pub fn with(setup: Setup) -> Option<Self> {
        if let Some(reason) = reason_to_skip(URING) {
            eprintln!("skipped: {reason}");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let mount_point = directory.path().join("mnt");
        std::fs::create_dir(&mount_point).unwrap();
        if let Some(user) = setup.user {
            for path in [directory.path(), &mount_point] {
                std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
            }
        }
        let (daemon, mut output) = Self::start_daemon(&mount_point, setup);
        match wait_until_ready(&mut output) {
            Ok(()) => Some(Self { directory, daemon, output }),
            Err(message) => panic!("{message}"),
        }
    }

    /// Starts a daemon for `mount_point`: this same test program, told to run one test.
    pub fn start_daemon(mount_point: &Path, setup: Setup) -> (Child, DaemonOutput) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "support::daemon_process", "--nocapture"]);
        command
            .env("RUST_BACKTRACE", "0")
            .env(MOUNT_POINT, mount_point)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut switch = None;
        if URING {
            command.env(OVER_URING, "1");
            switch = Some(Switch::set(setup.switched_on).unwrap());
        }
        if setup.direct_io {
            command.env(DIRECT_IO, "1");
        }
        if setup.synchronous {
            command.env(SYNCHRONOUS, "1");
        }
        if setup.workers > 0 {
            command.env(WORKERS, setup.workers.to_string());
        }
        if setup.in_file {
            command.env(IMAGE, image_beside(mount_point));
        }
        if let Some(user) = setup.user {
            command.uid(user).gid(user).current_dir("/");
        }
        let mut daemon = command.spawn().unwrap();
        let lines = BufReader::new(daemon.stdout.take().unwrap());
        (daemon, DaemonOutput { lines, switch })
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// The path of the image file, if there is one.
    pub fn image(&self) -> PathBuf {
        image_beside(&self.path())
    }

    /// Flushes issued to the device.
    pub fn flushes(&self) -> u64 {
        syncline_fuse::control::text(&self.path(), "flushes").unwrap().parse().unwrap()
    }

    /// The number of its connection to the kernel.
    pub fn connection(&self) -> u32 {
        use std::os::unix::fs::MetadataExt;
        libc::minor(std::fs::metadata(self.path()).unwrap().dev())
    }

    /// Requests of one kind that the daemon has seen.
    pub fn requests(&self, kind: &str) -> u64 {
        let text = syncline_fuse::control::text(&self.path(), "requests").unwrap();
        let counts: serde_json::Value = serde_json::from_str(&text).unwrap();
        counts.get(kind).map_or(0, |count| count.as_u64().unwrap())
    }

    /// How often the daemon's threads have gone to sleep.
    pub fn sleeps(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.daemon.id())).unwrap();
        let of = |task: std::io::Result<std::fs::DirEntry>| {
            // A thread may have ended meanwhile.
            let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse::<u64>().ok()
        };
        tasks.filter_map(of).sum()
    }

    /// Unmounts as an administrator would, and checks that the daemon closes its filesystem and
    /// exits cleanly.
    pub fn unmount(mut self) {
        // The kernel may still be releasing files that the test has just closed.
        let unmounted = (0..50).any(|_| {
            let done =
                Command::new("umount").arg(self.path()).stderr(Stdio::null()).status().unwrap().success();
            if !done {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            done
        });
        assert!(unmounted, "unmounting failed");
        self.end_of_daemon();
    }

    /// Waits for the daemon to exit after an unmount.
    pub fn wait_for_the_end(&mut self) {
        self.end_of_daemon();
    }

    /// Ends the connection to the kernel, even if requests wait for answers.
    pub fn abort(&mut self) {
        let connections = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "fusectl", "none"]).arg(connections.path()).status().unwrap();
        assert!(mounted.success());
        let abort = connections.path().join(self.connection().to_string()).join("abort");
        std::fs::write(abort, "1").unwrap();
        unmount(connections.path());
    }

    /// Kills the daemon, as a crash would. The dead mount stays until the value is dropped.
    pub fn kill_daemon(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }

    fn end_of_daemon(&mut self) {
        let closed = self.output.lines.by_ref().lines().any(|line| line.unwrap() == "closed");
        assert!(closed, "the daemon did not close its filesystem");
        assert!(self.daemon.wait().unwrap().success());
    }
}

impl<const URING: bool> Drop for TestMount<URING> {
    fn drop(&mut self) {
        // Whatever happened, leave no mount and no process behind.
        let _ = Command::new("umount").arg("-l").arg(self.path()).stderr(Stdio::null()).status();
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn image_beside(mount_point: &Path) -> PathBuf {
    mount_point.with_file_name("image")
}

fn reason_to_skip(uring: bool) -> Option<String> {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("only root can mount".into());
    }
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("/dev/fuse cannot be opened".into());
    }
    if !uring {
        return None;
    }
    if !Worker::new(WorkerOptions::default()).unwrap().has_ring() {
        return Some("this process may not use io_uring".into());
    }
    Switch::set(true).err()
}

/// Unmounts as an administrator would.
pub fn unmount(path: &Path) {
    // The kernel may still be releasing files that the test has just closed.
    let unmounted = (0..50).any(|_| {
        let done = Command::new("umount").arg(path).stderr(Stdio::null()).status().unwrap().success();
        if !done {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        done
    });
    assert!(unmounted, "unmounting failed");
}

/// Why an ordinary user can't mount here.
pub fn reason_not_to_mount_as_ordinary_user() -> Option<&'static str> {
    let helper =
        ["/usr/bin/fusermount3", "/bin/fusermount3"].into_iter().find(|path| Path::new(path).exists());
    let Some(helper) = helper else { return Some("fusermount3 is not installed") };
    let setuid = std::fs::metadata(helper).is_ok_and(|found| found.permissions().mode() & 0o4000 != 0);
    if !setuid {
        return Some("fusermount3 is not setuid root");
    }
    let user_can = |what: &str, path: &Path| {
        let test = Command::new("test").arg(what).arg(path).uid(ORDINARY_USER).gid(ORDINARY_USER).status();
        test.is_ok_and(|status| status.success())
    };
    if !user_can("-w", Path::new("/dev/fuse")) {
        return Some("an ordinary user cannot open /dev/fuse");
    }
    // The daemon is this same program.
    if !user_can("-x", &std::env::current_exe().unwrap()) {
        return Some("an ordinary user cannot run this test program");
    }
    None
}

/// Waits until the daemon has mounted, or returns its error.
pub fn wait_until_ready(output: &mut DaemonOutput) -> Result<(), String> {
    let _switch = output.switch.take();
    for line in output.lines.by_ref().lines() {
        let line = line.unwrap();
        // The test harness prints before us, without ending its line.
        if line.ends_with(READY) {
            return Ok(());
        }
        if let Some((_, error)) = line.split_once(FAILED) {
            return Err(error.to_owned());
        }
    }
    Err("the daemon ended without a word".into())
}

/// The `errno` of an operation that must fail.
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}
