//! Tells umount(8) of a mount, so that it leaves the work to `umount.fuse.syncline` or
//! `umount.fuseblk.syncline`.
//!
//! If root names a directory by its full path, umount(8) asks statfs(2) for the type, which is the
//! same for every FUSE filesystem, and so finds no helper for this one. It looks further if
//! `/run/mount/utab` has a line for the directory. mount(8) and umount(8) write that file, under a
//! lock of their own, and "fake" calls of them do nothing else.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use syncline_fuse::mounts;

/// Where umount(8) looks for the helper of a type. Without it there is nothing to leave the work to.
const HELPERS: &str = "/sbin/umount.";

/// The table of mount(8) and umount(8).
const TABLE: &str = "/run/mount/utab";

/// The option that marks a line of ours.
const MARK: &str = "x-syncline";

/// How long a call may take: others may hold the file's lock.
const TIME_MAX: Duration = Duration::from_secs(2);

/// A mount's line in the table; removed when this is dropped.
pub struct Line {
    directory: PathBuf,
}

impl Line {
    /// Enters a mount that root has made. Only umount(8)'s waiting depends on it, and what other programs
    /// look for in its options. (Where the mount has a block device, the kernel waits in any case.)
    ///
    /// If mount(8) has started this, it finds the line and writes none of its own, so the line has
    /// the options that mount(8) would keep. (It does not pass on those that begin with `x-`.)
    pub fn enter(image: &Path, directory: &Path, options: &[String]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let directory = directory.canonicalize().ok()?;
        let entry = mounts().ok()?.into_iter().rfind(|entry| entry.mount_point == directory)?;
        if !Path::new(&format!("{HELPERS}{}", entry.filesystem_type)).exists() {
            return None;
        }
        // Lines belong to mounts by their sources. A full path is never taken for an option, or for a
        // tag such as LABEL=.
        let source = match entry.image != entry.source || syncline_image::is_remote(image) {
            true => PathBuf::from(entry.source),
            false => std::path::absolute(image).ok()?,
        };
        let kept = options.iter().map(|option| option.trim()).filter(|option| is_kept(option));
        let options = std::iter::once(MARK).chain(kept).collect::<Vec<_>>().join(",");
        let of_type = ["-f", "-t", &entry.filesystem_type, "-o", &options].map(OsStr::new);
        let places = [source.as_os_str(), directory.as_os_str()];
        fake("mount", of_type.into_iter().chain(places)).then_some(Self { directory })
    }
}

/// True for an option that mount(8) keeps in its table because the kernel does not, and other
/// programs look for it.
fn is_kept(option: &str) -> bool {
    option == "_netdev" || option.starts_with("x-") || option.starts_with("comment=")
}

impl Drop for Line {
    fn drop(&mut self) {
        let same = |directory: &Path| directory == self.directory;
        // A mount made there since then has a line, too.
        let free = mounts().is_ok_and(|mounts| !mounts.iter().any(|entry| same(&entry.mount_point)));
        if free && fs::read(TABLE).is_ok_and(|table| last_is_ours(&table, &self.directory)) {
            fake("umount", [OsStr::new("--fake"), self.directory.as_os_str()]);
        }
    }
}

/// True if the last line of a directory, which is the one that umount(8) removes, is ours. It may
/// belong to a mount in another mount namespace: all namespaces share one table.
fn last_is_ours(table: &[u8], directory: &Path) -> bool {
    let target = [b"TARGET=".to_vec(), escaped(directory)].concat();
    let fields = |line: &'_ [u8]| line.split(|byte| *byte == b' ').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let last = table.split(|byte| *byte == b'\n').map(fields).rfind(|line| line.contains(&target));
    let options = last.into_iter().flatten().find_map(|field| Some(field.strip_prefix(b"OPTS=")?.to_vec()));
    options.unwrap_or_default().split(|byte| *byte == b',').any(|option| option == MARK.as_bytes())
}

/// A path as written in the table.
fn escaped(path: &Path) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        _ => vec![*byte],
    };
    path.as_os_str().as_bytes().iter().flat_map(escape).collect()
}

/// Has a program change only its table. It looks at no path, since that would mean waiting for the
/// daemon that serves it.
fn fake<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> bool {
    let mut command = Command::new(program);
    command.args(["-i", "--no-canonicalize"]).args(arguments);
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = started.inspect_err(|error| tracing::debug!(%error, "{program} can't be run")) else {
        return false;
    };
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if started.elapsed() < TIME_MAX => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                tracing::debug!("{program} does not end");
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_of_ours_is_taken_away() {
        let ours = "SRC=/image TARGET=/a\\040b ROOT=/ OPTS=x-mine,x-syncline\n";
        let theirs = "SRC=/dev/sdb TARGET=/a\\040b ROOT=/ OPTS=user=joe\n";
        let elsewhere = "SRC=/dev/sdc TARGET=/a ROOT=/ OPTS=x-syncline-not\n";
        let is_ours = |lines: &[&str]| last_is_ours(lines.concat().as_bytes(), Path::new("/a b"));
        assert!(is_ours(&[theirs, ours, elsewhere]));
        assert!(!is_ours(&[ours, theirs]));
        assert!(!is_ours(&[elsewhere]) && !is_ours(&[]));
        assert!(!last_is_ours(elsewhere.as_bytes(), Path::new("/a")));
    }

    #[test]
    fn what_mount_keeps_of_the_options_is_kept() {
        let kept = ["_netdev", "x-systemd.requires=a", "comment=b"];
        let others = ["ro", "X-mount.mkdir", "nofail", "user", ""];
        assert!(kept.into_iter().all(is_kept) && !others.into_iter().any(is_kept));
    }
}
