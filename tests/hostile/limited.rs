//! A system limit on a process's memory: a separate memory cgroup, version 1 or 2.

use rustix::process::Pid;
use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup; removed when dropped, which needs the processes in it to have ended.
pub struct Limited {
    directory: PathBuf,
}

impl Limited {
    /// Limits a process to this many bytes, beyond which the kernel kills it; `None` if no cgroup
    /// can be created. Page cache of files that it writes counts too, but is reclaimed.
    pub fn new(pid: Pid, bytes: u64) -> Option<Self> {
        let name = format!("syncline-test-{}", pid.as_raw_nonzero());
        let (first, second) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let (directory, file) = if first.is_dir() {
            (first.join(name), "memory.limit_in_bytes")
        } else {
            // It may be enabled already, or may not be permitted.
            let _ = fs::write(second.join("cgroup.subtree_control"), "+memory");
            (second.join(name), "memory.max")
        };
        fs::create_dir(&directory).ok()?;
        let limited = Self { directory };
        fs::write(limited.directory.join(file), bytes.to_string()).ok()?;
        fs::write(limited.directory.join("cgroup.procs"), pid.as_raw_nonzero().to_string()).ok()?;
        Some(limited)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // The processes have ended, but the kernel may take a moment to notice.
        for _ in 0..100 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Peak resident memory of a process in bytes.
pub fn peak_bytes(pid: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux tells it");
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}
