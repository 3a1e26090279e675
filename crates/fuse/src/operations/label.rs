//! The ioctls that read and set the filesystem's label.

use super::ioctl::require_owner;
use super::{Answer, Refusal};
use crate::abi::{IoctlIn, IoctlOut};
use crate::control::Asker;
use crate::control::label::{GET_LABEL, LABEL_MAX, SET_LABEL};
use crate::reply::Reply;
use crate::request::{Arguments, Request};
use crate::session::Session;

/// Serves the ioctls about the label; `None` for any other.
pub(super) async fn ioctl(
    session: &Session,
    request: &Request,
    input: &IoctlIn,
    arguments: &mut Arguments<'_>,
) -> Option<Answer> {
    match input.command {
        GET_LABEL => Some(get(session, input)),
        SET_LABEL => Some(set(session, request, input, arguments).await),
        _ => None,
    }
}

fn get(session: &Session, input: &IoctlIn) -> Answer {
    if input.out_size as usize != LABEL_MAX {
        return Err(Refusal::Malformed);
    }
    let mut room = session.fs().label().into_bytes();
    room.resize(LABEL_MAX, 0);
    Ok(Reply::fixed(&IoctlOut::default()).with_data(room))
}

async fn set(session: &Session, request: &Request, input: &IoctlIn, arguments: &mut Arguments<'_>) -> Answer {
    if input.in_size as usize != LABEL_MAX {
        return Err(Refusal::Malformed);
    }
    // The kernel leaves the permission check to the filesystem.
    require_owner(&Asker::new(request.ino(), request.caller().uid))?;
    let room = arguments.bytes(LABEL_MAX)?;
    let text = room.split(|&byte| byte == 0).next().and_then(|text| std::str::from_utf8(text).ok());
    session.fs().set_label(text.ok_or(Refusal::Errno(libc::EINVAL))?).await?;
    Ok(Reply::fixed(&IoctlOut::default()))
}
