//! A daemon that has, or wants, the image.

use super::machine::{Host, folder};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program that is tested.
pub fn program() -> PathBuf {
    std::env::var_os("SYNCLINE_HOSTS_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_syncline").into(), PathBuf::from)
}

/// A `syncline mount` on a host.
pub struct Daemon {
    child: Child,
    pub directory: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Starts mounting; `name` is new.
    pub fn start(host: &Host, image: &str, name: &str, takeover: bool) -> Self {
        let (directory, log) = (folder().join(name), folder().join(format!("{name}.log")));
        fs::create_dir(&directory).unwrap();
        let mut command = host.command(&program());
        command.args(["mount", "--foreground"]).args(takeover.then_some("--takeover")).arg(image);
        command.arg(&directory).args(["-o", "transport=available"]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        Self { child: command.spawn().unwrap(), directory, log }
    }

    /// Waits until it is mounted and answers; false if it ended, or the time is over.
    pub fn mounted_before(&mut self, limit: Instant) -> bool {
        while Instant::now() < limit {
            if self.ended() {
                return false;
            }
            if is_mounted(&self.directory) {
                // Answered when recovery is done.
                return fs::metadata(&self.directory).is_ok();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    pub fn ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("not zero");
        let _ = kill_process(pid, signal);
    }

    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The last line that it logged.
    pub fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().last().unwrap_or_default().to_owned()
    }

    /// All that it logged.
    pub fn words(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        let _ = Command::new("umount").arg("-l").arg(&self.directory).stderr(Stdio::null()).status();
        let _ = fs::remove_dir(&self.directory);
        let _ = fs::remove_file(&self.log);
    }
}

fn is_mounted(directory: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let directory = directory.to_str().unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(directory))
}
