//! Setuid and setgid, which go when somebody changes a file who may not keep them.
//!
//! The kernel says in the request that they go; in which modes setgid does, the daemon decides. One that lets execution as the
//! group goes always, another only if the caller is not of the file's group.

use crate::request::Request;
use crate::session::Session;
use std::fs;
use syncline_fs::FsError;
use syncline_fs::types::Ino;

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o0010;

/// True for callers without CAP_FSETID, as far as a request tells: all but root.
pub(super) fn goes_by(request: &Request) -> bool {
    request.caller().uid != 0
}

/// To be called before what changes a file, where they go with it: takes away what goes only because of who asks. True when
/// the kernel's notion of the mode will be wrong. (It asks for it to be done, but does not notice that it was.)
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
    if by_group && goes_by(request) && !is_in_group(request, attributes.gid) {
        session.fs().clear_setgid(ino).await?;
    }
    Ok(special)
}

/// True if who asks is in a group. A request tells one of the caller's groups, and its process the others while it waits; of a
/// process that can't be seen from here nothing is believed.
fn is_in_group(request: &Request, gid: u32) -> bool {
    if request.caller().gid == gid {
        return true;
    }
    let status = match request.pid() {
        0 => return false,
        pid => fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(),
    };
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
}
