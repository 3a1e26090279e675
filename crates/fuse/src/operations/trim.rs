//! The ioctl that discards free blocks.

use super::ioctl::require_owner;
use super::{Answer, Refusal};
use crate::abi::{IoctlIn, IoctlOut};
use crate::control::Asker;
use crate::control::trim::TrimRange;
use crate::reply::Reply;
use crate::request::{Arguments, Request};
use crate::session::Session;
use syncline_device::BLOCK_BYTES;
use syncline_fs::FsError;
use zerocopy::IntoBytes;

pub(super) async fn trim(
    session: &Session,
    request: &Request,
    input: &IoctlIn,
    arguments: &mut Arguments<'_>,
) -> Answer {
    if input.out_size as usize != size_of::<TrimRange>() {
        return Err(Refusal::Malformed);
    }
    // The kernel leaves the permission check to the filesystem.
    require_owner(&Asker::new(request.ino(), request.caller().uid))?;
    let range: TrimRange = arguments.take()?;
    let store = session.fs().store();
    let size_bytes = store.device().size_bytes();
    if range.start >= size_bytes || range.min_len > size_bytes || range.len < BLOCK_BYTES as u64 {
        return Err(Refusal::Errno(libc::EINVAL));
    }
    let bytes = range.start..range.start.saturating_add(range.len).min(size_bytes);
    let len = store.trim(bytes, range.min_len).await.map_err(FsError::from)?;
    Ok(Reply::fixed(&IoctlOut::default()).with_data(TrimRange { len, ..range }.as_bytes().to_vec()))
}
