//! Extended attributes.

use super::{Answer, Refusal};
use crate::abi::{GetXattrIn, GetXattrOut, SetXattrIn};
use crate::reply::Reply;
use crate::request::{Arguments, Request};
use crate::session::Session;
use bytes::Bytes;
use syncline_fs::types::XattrMode;

/// Attributes of this namespace have a meaning that this daemon would have to enforce. It has no ACLs yet, and one
/// that is kept but not enforced is worse than none.
const ENFORCED: &[u8] = b"system.";

fn name<'a>(arguments: &mut Arguments<'a>) -> Result<&'a [u8], Refusal> {
    let name = arguments.string()?;
    if name.is_empty() {
        return Err(Refusal::Malformed);
    }
    if name.starts_with(ENFORCED) {
        return Err(Refusal::Errno(libc::EOPNOTSUPP));
    }
    Ok(name)
}

/// The value, or its length if there is no room at all for it.
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
    let value = session.fs().getxattr(request.ino(), name(&mut arguments)?).await?;
    sized(value, input.size)
}

pub(super) async fn list(session: &Session, request: &Request) -> Answer {
    let input: GetXattrIn = request.arguments().take()?;
    let names = session.fs().listxattr(request.ino()).await?;
    sized(names.into(), input.size)
}

pub(super) async fn set(session: &Session, request: &Request) -> Answer {
    let mut arguments = request.arguments();
    let input: SetXattrIn = arguments.take()?;
    let name = name(&mut arguments)?;
    let value = arguments.bytes(input.size as usize)?;
    let mode = match input.flags as i32 {
        0 => XattrMode::Set,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return Err(Refusal::Malformed),
    };
    session.fs().setxattr(request.ino(), name, value, mode).await?;
    Ok(Reply::empty())
}

pub(super) async fn remove(session: &Session, request: &Request) -> Answer {
    session.fs().removexattr(request.ino(), name(&mut request.arguments())?).await?;
    Ok(Reply::empty())
}
