//! Who holds the locks on an image, as /proc tells root: a stranger is neither root nor the image's owner, and has it open for
//! reading only.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The number of the first namespace of processes, the one that sees all others (`PROC_PID_INIT_INO`).
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;

/// True for root that sees all processes. Anybody else can't tell a stranger from a writer that it does not see.
pub(super) fn can_be_told() -> bool {
    // SAFETY: takes no memory and can't fail.
    let root = unsafe { libc::geteuid() } == 0;
    root && fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == FIRST_NAMESPACE)
}

/// True if somebody else holds locks on the file, and strangers all of them.
pub(super) fn are_all(file: &File) -> io::Result<bool> {
    let image = file.metadata()?;
    let own = (std::process::id(), file.as_raw_fd());
    let mut strangers = 0;
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        for descriptor in unless_gone(descriptors(pid))?.unwrap_or_default() {
            if (pid, descriptor) == own {
                continue;
            }
            match unless_gone(holder(pid, descriptor, &image)) {
                Ok(None | Some(Holder::Nobody)) => {}
                Ok(Some(Holder::Stranger)) => strangers += 1,
                // Whoever can't be told is none.
                Ok(Some(Holder::Entitled)) | Err(_) => return Ok(false),
            }
        }
    }
    Ok(strangers > 0)
}

/// What a descriptor makes of its process.
enum Holder {
    /// It is of another file, or holds no lock.
    Nobody,
    Stranger,
    Entitled,
}

fn holder(pid: u32, descriptor: i32, image: &fs::Metadata) -> io::Result<Holder> {
    // What the kernel knows by itself comes first: to look at any file of any process would be to wait for filesystems that are
    // slow or dead.
    let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}"))?;
    let told = |name| about.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let other = told("ino:").is_some_and(|number| number.parse() != Ok(image.ino()));
    if told("lock:").is_none() || other {
        return Ok(Holder::Nobody);
    }
    let found = fs::metadata(format!("/proc/{pid}/fd/{descriptor}"))?;
    if (found.dev(), found.ino()) != (image.dev(), image.ino()) {
        return Ok(Holder::Nobody);
    }
    let flags = told("flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
    let flags = flags.ok_or(io::ErrorKind::InvalidData)?;
    // Not the owner of /proc/PID, which a process can have changed to root.
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let users =
        status.lines().find_map(|line| line.strip_prefix("Uid:")).ok_or(io::ErrorKind::InvalidData)?;
    let users: Vec<u32> = users.split_whitespace().flat_map(str::parse).collect();
    let entitled = users.is_empty() || users.iter().any(|&uid| uid == 0 || uid == image.uid());
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    Ok(if entitled || writes { Holder::Entitled } else { Holder::Stranger })
}

fn descriptors(pid: u32) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"))?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(numbers.collect())
}

/// A process, or a descriptor, that has ended meanwhile holds nothing.
fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}
