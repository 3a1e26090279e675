//! Growing the mounted filesystem, over the control channel.

use super::Refusal;
use crate::control::wire::{ControlIn, SIZE_MAX, answer};
use crate::session::Session;

/// Grows the filesystem to the requested size, and returns its sizes before and after.
pub(super) async fn resize(session: &Session, question: &ControlIn) -> Result<Vec<u8>, Refusal> {
    let wanted = Some(question.offset).filter(|size| *size != SIZE_MAX);
    let done = session.fs().enlarge(wanted).await.inspect_err(|error| {
        tracing::warn!("the filesystem does not become larger: {error}");
    })?;
    tracing::info!(before_bytes = done.before_bytes, now_bytes = done.now_bytes, "resized");
    Ok(answer(done.before_bytes, done.now_bytes, &[]))
}
