//! Whether a caller opened a file with O_SYNC or O_DSYNC, for requests that do not say so.
//!
//! A WRITE has the flags of its descriptor. COPY_FILE_RANGE and FALLOCATE do not, and most mounts are
//! not told of opens. So the caller's descriptors are looked up: procfs shows the flags and the inode
//! of each.

use crate::request::Request;
use crate::session::Session;
use std::path::Path;
use syncline_fs::types::Ino;

/// Most descriptors that are looked at. With more, the caller is taken at the strictest word.
const DESCRIPTORS_MAX: usize = 256;

/// The durability that a caller asked for when it opened a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Asked {
    Nothing,
    /// O_DSYNC.
    Data,
    /// O_SYNC; or nobody knows.
    Everything,
}

/// The durability that the caller of a request asked for when it opened this inode. Of several
/// descriptors the strictest counts. The strictest also counts if none can be seen: the caller is in
/// another PID namespace, belongs to another user than this daemon, or is the kernel, or looking takes
/// too long.
pub(super) async fn asked(session: &Session, request: &Request, ino: Ino) -> Asked {
    let directory = Path::new("/proc").join(request.pid().to_string()).join("fdinfo");
    let looked = session.processes().look(move || strictest(&directory, ino)).await;
    looked.unwrap_or(Asked::Everything)
}

fn strictest(directory: &Path, ino: Ino) -> Asked {
    let Ok(descriptors) = std::fs::read_dir(directory) else { return Asked::Everything };
    let mut strictest = None;
    for (index, descriptor) in descriptors.enumerate() {
        let Ok(descriptor) = descriptor else { return Asked::Everything };
        if index == DESCRIPTORS_MAX {
            return Asked::Everything;
        }
        // One that was closed meanwhile is not the caller's.
        let Ok(text) = std::fs::read_to_string(descriptor.path()) else { continue };
        strictest = strictest.max(asked_by(&text, ino));
    }
    strictest.unwrap_or(Asked::Everything)
}

/// The durability that a descriptor asks for, from its text in /proc; `None` if it is of another inode.
fn asked_by(text: &str, ino: Ino) -> Option<Asked> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    // Linux before 5.14 does not show the inode.
    if field("ino:").is_some_and(|shown| shown.parse() != Ok(ino)) {
        return None;
    }
    let flags = field("flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok())?;
    Some(match flags {
        flags if flags & libc::O_SYNC == libc::O_SYNC => Asked::Everything,
        flags if flags & libc::O_DSYNC != 0 => Asked::Data,
        _ => Asked::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    #[test]
    fn the_flags_of_the_inode_count() {
        let text = |flags: &str| format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t29\nino:\t7\n");
        assert_eq!(asked_by(&text("0100002"), 7), Some(Asked::Nothing));
        assert_eq!(asked_by(&text("0110002"), 7), Some(Asked::Data));
        assert_eq!(asked_by(&text("04110002"), 7), Some(Asked::Everything));
        assert_eq!(asked_by(&text("04110002"), 8), None);
        assert_eq!(asked_by("pos:\t0\nflags:\t0110002\n", 8), Some(Asked::Data), "an old kernel");
    }

    #[test]
    fn the_strictest_of_the_callers_descriptors_counts() {
        let own = Path::new("/proc/thread-self/fdinfo");
        let path = std::env::temp_dir().join(format!("syncline-descriptors-{}", std::process::id()));
        let plain = File::create(&path).unwrap();
        let ino = plain.metadata().unwrap().ino();
        let open = |flags| File::options().write(true).custom_flags(flags).open(&path).unwrap();
        assert_eq!(strictest(own, ino), Asked::Nothing);
        let data = open(libc::O_DSYNC);
        assert_eq!(strictest(own, ino), Asked::Data);
        let everything = open(libc::O_SYNC);
        assert_eq!(strictest(own, ino), Asked::Everything);
        drop((everything, data));
        assert_eq!(strictest(own, ino), Asked::Nothing);
        drop(plain);
        std::fs::remove_file(path).unwrap();
        assert_eq!(strictest(own, u64::MAX), Asked::Everything, "nothing is known of it");
        assert_eq!(strictest(Path::new("/proc/0/fdinfo"), ino), Asked::Everything);
    }
}
