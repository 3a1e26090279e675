//! Mounts in other mount namespaces: a container, a service or a shell may have a copy of a mount
//! that is gone here, which keeps the daemon alive.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use syncline_device::{MountEntry, mounts, parse_mounts};

/// Where the kernel lists its live FUSE connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A namespace that has the mount, represented by one of its processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// The process.
    pub pid: u32,
    /// The process's command name.
    pub command: String,
    /// Where it has the mount.
    pub mount_point: PathBuf,
}

/// Finds the other namespaces that have the filesystem that `entry` was a mount of, one process for
/// each. Sees only processes that this user may look at; only root sees those of other users.
pub fn mounted_elsewhere(entry: &MountEntry) -> io::Result<Vec<Elsewhere>> {
    let mut namespaces = BTreeSet::new();
    let mut found = Vec::new();
    let mut pids: Vec<u32> =
        fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // The lowest pid in a container is usually the process that keeps it alive.
    pids.sort_unstable();
    for pid in pids {
        let process = Path::new("/proc").join(pid.to_string());
        // The process may have ended, or we may not be allowed to look at it.
        let Ok(namespace) = fs::read_link(process.join("ns/mnt")) else { continue };
        if !namespaces.insert(namespace) {
            continue;
        }
        let Ok(table) = fs::read(process.join("mountinfo")) else { continue };
        if let Some(other) = parse_mounts(&table).find(|other| other.is_of_the_same(entry)) {
            let command = fs::read(process.join("comm")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).trim_end().to_owned();
            found.push(Elsewhere { pid, command, mount_point: other.mount_point });
        }
    }
    Ok(found)
}

/// True if the kernel says that the filesystem of `entry`, no longer mounted here, is still mounted
/// somewhere. The kernel does not tell every user.
pub fn is_connected(entry: &MountEntry) -> bool {
    // The device number may have been reused by another mount.
    let taken = || mounts().is_ok_and(|mounts| mounts.iter().any(|other| other.device == entry.device));
    let number = connection_number(&entry.device);
    number.is_some_and(|number| Path::new(CONNECTIONS).join(number.to_string()).exists()) && !taken()
}

/// A device number as the kernel has it inside, which is the name of the connection.
fn connection_number(device: &str) -> Option<u64> {
    let (major, minor) = device.split_once(':')?;
    let (major, minor): (u64, u64) = (major.parse().ok()?, minor.parse().ok()?);
    Some(major << 20 | minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_the_numbers_of_their_devices() {
        assert_eq!(connection_number("0:53"), Some(53));
        assert_eq!(connection_number("0:300"), Some(300));
        // As seen with Linux 6.18.
        assert_eq!(connection_number("7:0"), Some(7340032));
        assert_eq!(connection_number("nonsense"), None);
    }

    #[test]
    fn what_is_mounted_here_is_found_here() {
        let all = super::super::mounts().unwrap();
        let root = all.iter().find(|entry| entry.mount_point.as_os_str() == "/").unwrap();
        assert!(!mounted_elsewhere(root).unwrap().is_empty());
        let none = MountEntry { device: "0:0".into(), ..root.clone() };
        assert_eq!(mounted_elsewhere(&none).unwrap(), []);
    }
}
