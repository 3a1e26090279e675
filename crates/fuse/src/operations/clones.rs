//! Copies of many files into one directory, over the control channel.

use super::Refusal;
use crate::control::clones::entries;
use crate::control::wire::{ControlIn, answer};
use crate::session::Session;
use std::fs;
use syncline_fs::types::{FileType, Ino};

/// CAP_DAC_READ_SEARCH and CAP_SYS_ADMIN. The kernel asks for the first where files are opened by their numbers; a
/// process with the second may remount whatever is read-only for it.
const CAPABILITIES: u64 = 1 << 2 | 1 << 21;

/// Makes a copy of each file of the entries that follow the question, up to the first that can't be made.
pub(super) async fn make(
    session: &Session,
    (directory, thread): (Ino, u32),
    question: &ControlIn,
    rest: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let may = session.processes().look(move || may_name_any_inode(thread)).await;
    if may != Some(true) {
        return Err(Refusal::Errno(libc::EPERM));
    }
    let entries = usize::try_from(question.offset).ok().and_then(|len| entries(rest.get(..len)?));
    let entries = entries.ok_or(Refusal::Malformed)?;
    session.page_cache().take_over_known(session.fs()).await;
    let (mut made, mut bytes, mut errno) = (0, 0, 0);
    for (file, name) in entries {
        match Box::pin(session.fs().clone_file(file, (directory, name))).await {
            Ok(Some(copy)) => {
                made += 1;
                bytes += if copy.file_type == FileType::Regular { copy.size } else { 0 };
            }
            Ok(None) => errno = libc::EOPNOTSUPP,
            Err(error) => errno = error.errno(),
        }
        if errno != 0 {
            break;
        }
    }
    Ok(answer(bytes, made, &errno.to_ne_bytes()))
}

/// True for a thread with these capabilities in the user namespace of the daemon. Root in a container may lack them,
/// and must not reach files outside of it by their numbers.
fn may_name_any_inode(thread: u32) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let is_here = namespace("self").is_some_and(|own| Some(own) == namespace(&thread.to_string()));
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    is_here && effective.is_some_and(|bits| bits & CAPABILITIES == CAPABILITIES)
}
