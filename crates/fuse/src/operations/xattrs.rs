//! Extended attributes.

use super::{Answer, Refusal};
use crate::abi::flags::{init, setxattr as flags};
use crate::abi::{GetXattrIn, GetXattrOut, SetXattrIn, SetXattrMore};
use crate::reply::Reply;
use crate::request::{Arguments, Request};
use crate::session::Session;
use bytes::Bytes;
use syncline_fs::types::XattrMode;

/// Namespaces of attributes that are only stored. The others have a meaning, and storing one
/// without enforcing it would be worse than refusing it.
const KEPT: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];
/// Attributes whose meaning is known: access control lists. The kernel enforces them if that was
/// negotiated.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// Both flags at once, which the kernel lets through.
const CREATE_AND_REPLACE: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
/// The capabilities that a file gives a program without setuid.
const CAPABILITY: &[u8] = b"security.capability";
/// The prefix of attributes that only root may see.
const TRUSTED: &[u8] = b"trusted.";

fn name<'a>(session: &Session, arguments: &mut Arguments<'a>) -> Result<&'a [u8], Refusal> {
    let name = arguments.string()?;
    if name.is_empty() {
        return Err(Refusal::Malformed);
    }
    if ACLS.contains(&name) && session.negotiated().has(init::POSIX_ACL) {
        return Ok(name);
    }
    match KEPT.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        None => Err(Refusal::Errno(libc::EOPNOTSUPP)),
        // A namespace without a name.
        Some(b"") => Err(Refusal::Malformed),
        Some(_) => Ok(name),
    }
}

/// The value, or its length if the caller gave no room for it.
fn sized(value: Bytes, room: u32) -> Answer {
    match room as usize {
        0 => Ok(Reply::fixed(&GetXattrOut { size: value.len() as u32, padding: 0 })),
        room if room < value.len() => Err(Refusal::Errno(libc::ERANGE)),
        _ => Ok(Reply::data(vec![value])),
    }
}

pub(super) async fn get(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: GetXattrIn = arguments.take()?;
    let value = session.fs().getxattr(request.ino(), name(session, &mut arguments)?).await?;
    sized(value, input.size)
}

pub(super) async fn list(session: &Session, request: &Request) -> Answer {
    let input: GetXattrIn = request.arguments().take()?;
    let mut names = session.fs().listxattr(request.ino()).await?;
    if request.caller().uid != 0 && names.windows(TRUSTED.len()).any(|name| name == TRUSTED) {
        names = without_trusted(&names);
    }
    sized(names.into(), input.size)
}

/// The names, each with its NUL, without those that only root may see. (The kernel lists whatever
/// it is told.)
fn without_trusted(names: &[u8]) -> Vec<u8> {
    names
        .split_inclusive(|&byte| byte == 0)
        .filter(|name| !name.starts_with(TRUSTED))
        .flatten()
        .copied()
        .collect()
}

pub(super) async fn set(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: SetXattrIn = arguments.take()?;
    let more = if session.negotiated().has(init::SETXATTR_EXT) {
        arguments.take()?
    } else {
        SetXattrMore::default()
    };
    let name = name(session, &mut arguments)?;
    let value = arguments.bytes(input.size as usize)?;
    let mode = match input.flags as i32 {
        0 => XattrMode::Set,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        // The attribute must both exist and not exist.
        CREATE_AND_REPLACE => {
            session.fs().getxattr(request.ino(), name).await?;
            return Err(Refusal::Errno(libc::EEXIST));
        }
        _ => return Err(Refusal::Malformed),
    };
    if ACLS.contains(&name) {
        let kill_setgid = more.setxattr_flags & flags::ACL_KILL_SGID != 0;
        session.fs().set_acl(request.ino(), name, value, kill_setgid).await?;
    } else {
        session.fs().setxattr(request.ino(), name, value, mode).await?;
    }
    Ok(Reply::empty())
}

pub(super) async fn remove(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let name = name(session, &mut arguments)?;
    session.fs().removexattr(request.ino(), name).await?;
    if name == CAPABILITY {
        session.note_capability_removed(request.ino(), request.pid());
    }
    Ok(Reply::empty())
}
