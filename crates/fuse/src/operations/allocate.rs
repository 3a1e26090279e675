//! FALLOCATE. (The kernel has already checked that the file is open for writing, and the caller's
//! limits.)

use super::policy::Policy;
use super::{Answer, Refusal, privileges};
use crate::abi::FAllocateIn;
use crate::page_cache::Change;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::Allocation;

/// The operation that a mode of fallocate(2) means, if we support it. ENOSYS would make the kernel
/// never ask again.
fn meaning(mode: u32) -> Result<Allocation, Refusal> {
    const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_RANGE_INSIDE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    match mode as i32 {
        0 => Ok(Allocation::Preallocate { keep_size: false }),
        libc::FALLOC_FL_KEEP_SIZE => Ok(Allocation::Preallocate { keep_size: true }),
        PUNCH_HOLE => Ok(Allocation::PunchHole),
        ZERO_RANGE => Ok(Allocation::ZeroRange { keep_size: false }),
        ZERO_RANGE_INSIDE => Ok(Allocation::ZeroRange { keep_size: true }),
        _ => Err(Refusal::Errno(libc::EOPNOTSUPP)),
    }
}

pub(super) async fn allocate(session: &Session, request: &Request) -> Answer {
    let input: FAllocateIn = request.arguments().take()?;
    let (ino, what) = (request.ino(), meaning(input.mode)?);
    let kill_privileges = privileges::goes_by(request);
    let end = input.offset.saturating_add(input.len);
    let change = match input.mode & libc::FALLOC_FL_KEEP_SIZE as u32 {
        0 => Change::Grow { range: input.offset..end, gap_end: end },
        _ => Change::Inside,
    };
    let policy = Policy::before(session, request, ino, kill_privileges, change).await?;
    session.fs().allocate(ino, what, input.offset, input.len, kill_privileges).await?;
    policy.answer(Reply::empty())
}
