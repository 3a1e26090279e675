//! Quotas of directory trees, over the control channel.

use super::Refusal;
use crate::control::wire::{ControlIn, LIMIT_STAYS};
use crate::session::Session;
use serde_json::{Value, json};
use syncline_fs::{FsError, QuotaLimits, QuotaUsage};

/// Sets the quota of a directory to the limits that follow the question.
pub(super) async fn set(session: &Session, ino: u64, rest: &[u8]) -> Result<(), Refusal> {
    let number =
        |at: usize| rest.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes);
    let (Some(bytes), Some(inodes)) = (number(0), number(8)) else { return Err(Refusal::Malformed) };
    let before = match session.fs().quota(ino).await {
        Ok(usage) => usage.limits,
        Err(FsError::NoQuota) => QuotaLimits::default(),
        Err(error) => return Err(error.into()),
    };
    let choose = |asked, before| if asked == LIMIT_STAYS { before } else { asked };
    let limits = QuotaLimits { bytes: choose(bytes, before.bytes), inodes: choose(inodes, before.inodes) };
    session.fs().set_quota(ino, limits).await?;
    // A limit that was set must also hold after a crash, whatever the directory's class.
    Box::pin(session.fs().make_durable(ino)).await?;
    Ok(())
}

/// Removes the quota of a directory.
pub(super) async fn remove(session: &Session, ino: u64) -> Result<(), Refusal> {
    session.fs().remove_quota(ino).await?;
    Box::pin(session.fs().make_durable(ino)).await?;
    Ok(())
}

/// A page of text about one quota, or about all.
pub(super) async fn page(
    session: &Session,
    question: &ControlIn,
    uid: u32,
    ino: Option<u64>,
) -> Result<Vec<u8>, Refusal> {
    if question.snapshot != 0 {
        return session.control().kept_page(question, uid).map_err(Refusal::Errno);
    }
    let text = match ino {
        Some(ino) => told(&session.fs().quota(ino).await?, None),
        None => {
            let mut all = Vec::new();
            for usage in session.fs().quotas() {
                // Without parent pointers there is only the number.
                let path =
                    session.fs().paths(usage.root).await.ok().and_then(|paths| paths.into_iter().next());
                all.push(told(&usage, path.as_deref()));
            }
            Value::Array(all)
        }
    };
    Ok(session.control().first_page(question, uid, text.to_string().into_bytes().into()))
}

/// A quota as JSON; the path is text, with invalid bytes replaced.
fn told(usage: &QuotaUsage, path: Option<&[u8]>) -> Value {
    json!({ "path": path.map(String::from_utf8_lossy), "usage": usage })
}
