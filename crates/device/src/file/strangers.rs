//! The holders of the locks on an image, as root sees them in /proc. A stranger is neither root nor
//! the image's owner, and has it open for reading only.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The inode number of the initial pid namespace, which sees all others (`PROC_PID_INIT_INO`).
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;
/// The inode number of the initial user namespace (`PROC_USER_INIT_INO`).
const FIRST_OF_USERS: u64 = 0xEFFF_FFFD;

/// True for root that sees all processes. Others can't tell a stranger from a writer that they do
/// not see.
pub(super) fn can_be_told() -> bool {
    let sees_all = || fs::metadata("/proc/self/ns/pid").is_ok_and(|space| space.ino() == FIRST_NAMESPACE);
    // Root of a user namespace may not look at other processes.
    let is_of_all = || fs::metadata("/proc/self/ns/user").is_ok_and(|space| space.ino() == FIRST_OF_USERS);
    is_root() && sees_all() && is_of_all()
}

pub(super) fn is_root() -> bool {
    // SAFETY: takes no memory and can't fail.
    unsafe { libc::geteuid() == 0 }
}

/// True if others hold locks on the file and all of them are strangers. The caller holds a lock,
/// too.
pub(super) fn are_all(file: &File) -> io::Result<bool> {
    // A process that locks and unlocks all the time must not keep root out either.
    for _ in 0..TRIES_MAX {
        match look(file)? {
            Found::Strangers => return Ok(true),
            Found::Entitled => return Ok(false),
            Found::Unknown => {}
        }
    }
    Ok(false)
}

/// How often to look again because locks came or went meanwhile.
const TRIES_MAX: u32 = 10;

enum Found {
    Strangers,
    Entitled,
    /// The holder of some lock can't be determined, or there is no lock but our own.
    Unknown,
}

fn look(file: &File) -> io::Result<Found> {
    let image = file.metadata()?;
    let own = (std::process::id(), file.as_raw_fd());
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", own.1))?;
    let Some(place) = locks(&about).find_map(place) else { return Ok(Found::Unknown) };
    let (mut explained, mut strangers) = (locks(&about).count(), 0);
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // Descriptors that can't be read count below as unexplained locks, if they hold any.
        for descriptor in descriptors(pid).unwrap_or_default() {
            if (pid, descriptor) == own {
                continue;
            }
            match holder(pid, descriptor, place, &image) {
                Ok(Holder::Entitled) => return Ok(Found::Entitled),
                Ok(Holder::Stranger { locks }) => {
                    (strangers, explained) = (strangers + locks, explained + locks)
                }
                Ok(Holder::Nobody) | Err(_) => {}
            }
        }
    }
    let all = fs::read_to_string("/proc/locks")?;
    let held = all.lines().filter(|line| !line.contains("->"));
    let held = held.filter(|line| line.split_whitespace().any(|word| word == place)).count();
    Ok(if strangers > 0 && held <= explained { Found::Strangers } else { Found::Unknown })
}

/// True if there are locks at a place and all are of the kind used for image files, which belong to
/// an open file description; others belong to a process or to another host.
pub(super) fn all_are_ours(at: &str) -> bool {
    let all = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut there = all.lines().filter(|line| line.split_whitespace().any(|word| word == at)).peekable();
    there.peek().is_some() && there.all(|line| line.contains("OFDLCK"))
}

/// The locks listed in a /proc/PID/fdinfo file.
pub(super) fn locks(about: &str) -> impl Iterator<Item = &str> {
    about.lines().filter_map(|line| line.strip_prefix("lock:"))
}

/// The device and inode that a lock is on, as the kernel writes them there and in /proc/locks:
/// 08:01:1234.
pub(super) fn place(lock: &str) -> Option<&str> {
    lock.split_whitespace().find(|word| word.split(':').count() == 3)
}

/// A process's hold on the image, as one of its descriptors shows it.
enum Holder {
    /// It refers to another file, or holds no lock.
    Nobody,
    Stranger {
        locks: usize,
    },
    Entitled,
}

fn holder(pid: u32, descriptor: i32, at: &str, image: &fs::Metadata) -> io::Result<Holder> {
    // The kernel knows this by itself; looking at any file of any process could mean waiting for a
    // filesystem that is slow or dead.
    let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}"))?;
    let locks = locks(&about).filter(|lock| place(lock) == Some(at)).count();
    if locks == 0 {
        return Ok(Holder::Nobody);
    }
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim);
    let flags = flags.and_then(|flags| i32::from_str_radix(flags, 8).ok());
    let flags = flags.ok_or(io::ErrorKind::InvalidData)?;
    // Not the owner of /proc/PID, which a process can make root.
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let users =
        status.lines().find_map(|line| line.strip_prefix("Uid:")).ok_or(io::ErrorKind::InvalidData)?;
    let users: Vec<u32> = users.split_whitespace().flat_map(str::parse).collect();
    let entitled = users.is_empty() || users.iter().any(|&uid| uid == 0 || uid == image.uid());
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    Ok(if entitled || writes { Holder::Entitled } else { Holder::Stranger { locks } })
}

pub(super) fn descriptors(pid: u32) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"))?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(numbers.collect())
}
