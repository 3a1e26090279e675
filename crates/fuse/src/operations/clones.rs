//! Copies of many files into one directory, over the control channel.

use super::Refusal;
use crate::control::clones::entries;
use crate::control::wire::{ControlIn, answer};
use crate::session::Session;
use syncline_fs::types::{Caller, FileType, Ino};

/// Makes a copy of each file of the entries that follow the question, up to the first that can't be made.
pub(super) async fn make(
    session: &Session,
    (directory, caller): (Ino, Caller),
    question: &ControlIn,
    rest: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let entries = usize::try_from(question.offset).ok().and_then(|len| entries(rest.get(..len)?));
    let entries = entries.ok_or(Refusal::Malformed)?;
    session.page_cache().take_over_known(session.fs()).await;
    let (mut made, mut bytes, mut errno) = (0, 0, 0);
    for (file, name) in entries {
        match Box::pin(session.fs().clone_file(caller, file, (directory, name))).await {
            Ok(Some(copy)) => {
                made += 1;
                bytes += if copy.file_type == FileType::Regular { copy.size } else { 0 };
            }
            Ok(None) => errno = libc::EOPNOTSUPP,
            Err(error) => errno = error.errno(),
        }
        if errno != 0 {
            break;
        }
    }
    Ok(answer(bytes, made, &errno.to_ne_bytes()))
}
