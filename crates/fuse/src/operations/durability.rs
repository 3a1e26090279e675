//! The ioctl about durability classes.

use super::reflink::require_owner;
use super::{Answer, Refusal};
use crate::abi::{IoctlIn, IoctlOut};
use crate::control::durability::{DurabilityMessage, SET, TELL};
use crate::reply::Reply;
use crate::request::{Arguments, Request};
use crate::session::Session;
use zerocopy::IntoBytes;

pub(super) async fn ioctl(
    session: &Session,
    request: &Request,
    input: &IoctlIn,
    arguments: &mut Arguments<'_>,
) -> Answer {
    let (fs, ino) = (session.fs(), request.ino());
    if input.out_size as usize != size_of::<DurabilityMessage>() {
        return Err(Refusal::Malformed);
    }
    let message: DurabilityMessage = arguments.take()?;
    match message.action {
        TELL => {}
        SET => {
            require_owner(session, request, ino).await?;
            let class = message.own.class().map_err(|()| Refusal::Errno(libc::EINVAL))?;
            // Rare, and it may take a checkpoint.
            Box::pin(fs.set_durability(ino, class)).await?;
        }
        _ => return Err(Refusal::Errno(libc::EINVAL)),
    }
    let (own, holds) = fs.durability(ino).await?;
    let answer = DurabilityMessage { own: own.into(), holds: Some(holds).into(), ..message };
    let reply = Reply::fixed(&IoctlOut::default()).with_data(answer.as_bytes().to_vec());
    // The change time moved, which the kernel does not expect from an ioctl.
    Ok(reply.with_stale_attributes(ino, message.action == SET))
}
