//! Setuid and setgid, which are cleared when somebody who may not keep them changes a file.
//!
//! The kernel says in the request that they are to be cleared; the daemon decides for which modes
//! setgid is. Where the group may execute the file, setgid is always cleared; elsewhere only if the
//! caller is not in the file's group.

use crate::request::Request;
use crate::session::Session;
use std::fs;
use syncline_fs::FsError;
use syncline_fs::types::Ino;

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o0010;

/// True for callers without CAP_FSETID, as far as a request shows: all but root.
pub(super) fn goes_by(request: &Request) -> bool {
    request.caller().uid != 0
}

/// Called before a change to a file that clears these bits: clears setgid where that depends on the
/// caller. Returns true if the kernel's cached mode will be wrong. (It asks for the bits to be
/// cleared, but does not notice that they were.)
pub(super) async fn prepare(
    session: &Session,
    request: &Request,
    ino: Ino,
    goes: bool,
) -> Result<bool, FsError> {
    if !goes {
        return Ok(false);
    }
    let attributes = session.fs().getattr(ino).await?;
    let special = attributes.permissions & (SETUID | SETGID) != 0;
    let by_group = attributes.permissions & (SETGID | GROUP_EXECUTE) == SETGID;
    if by_group && goes_by(request) && !Box::pin(is_in_group(session, request, attributes.gid)).await {
        session.fs().clear_setgid(ino).await?;
    }
    Ok(special)
}

/// True if the caller is in chown(2) or one of its kin, as far as its process can be seen from here.
pub(super) async fn is_in_chown(session: &Session, request: &Request) -> bool {
    #[cfg(target_arch = "x86_64")]
    const CALLS: [libc::c_long; 4] =
        [libc::SYS_chown, libc::SYS_lchown, libc::SYS_fchown, libc::SYS_fchownat];
    #[cfg(not(target_arch = "x86_64"))]
    const CALLS: [libc::c_long; 2] = [libc::SYS_fchown, libc::SYS_fchownat];
    let text = text_of_caller(session, request, "syscall").await;
    text.split_whitespace()
        .next()
        .is_some_and(|number| number.parse().is_ok_and(|call| CALLS.contains(&call)))
}

/// True if the caller is in a group. The request carries one of the caller's groups; the others are
/// read from its process while it waits. A process that can't be seen from here counts as in no
/// other group.
async fn is_in_group(session: &Session, request: &Request, gid: u32) -> bool {
    if request.caller().gid == gid {
        return true;
    }
    let status = text_of_caller(session, request, "status").await;
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
}

/// A text of /proc about the caller's process; empty if that can't be seen from here.
async fn text_of_caller(session: &Session, request: &Request, name: &'static str) -> String {
    let pid = request.pid();
    let look = move || fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    session.processes().look(look).await.unwrap_or_default()
}
