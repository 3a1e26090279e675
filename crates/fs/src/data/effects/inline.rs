//! Inline data: the contents of a small file, which lie in its inode item.

use super::{Commit, Effect, FileChange};
use crate::FsError;
use crate::inode::InodeState;
use bytes::Bytes;

/// The change to the inline data.
pub(in crate::data) enum InlineChange {
    Keep,
    Set(Option<Bytes>),
}

/// The inline data before the change, if it was changed.
#[derive(Default)]
pub(super) struct Inline(Option<Option<Bytes>>);

impl Effect for Inline {
    fn put(
        &mut self,
        change: &FileChange<'_>,
        file: &mut InodeState,
        _commit: &mut Commit<'_>,
    ) -> Result<(), FsError> {
        if let InlineChange::Set(inline) = &change.inline {
            self.0 = Some(file.data.logged.set_inline(inline.clone()));
        }
        Ok(())
    }

    fn undo(&mut self, file: &mut InodeState) {
        if let Some(before) = self.0.take() {
            file.data.logged.set_inline(before);
        }
    }
}
