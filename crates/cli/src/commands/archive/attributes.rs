//! What an entry of an archive says of a file besides its contents.

use super::entries::Found;
use super::pax;
use super::untar::unread;
use crate::failure::Failure;
use syncline::{Error, Filesystem, Timestamp};
use syncline_device::block_on;
use syncline_fs::types::{Caller, Ino, SetAttributes, SetTime, XattrMode};

pub(super) const ROOT: Caller = Caller { uid: 0, gid: 0 };
/// Names of attributes that are access control lists begin so.
const LIST: &[u8] = b"system.posix_acl_";

pub(super) struct Attributes {
    is_symlink: bool,
    permissions: u16,
    uid: u32,
    gid: u32,
    mtime: Timestamp,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    pub fn of(found: &Found) -> Result<Self, Failure> {
        let header = &found.header;
        let text = |key: &[u8]| found.value(key).and_then(|value| std::str::from_utf8(value).ok());
        let number =
            |key: &[u8], in_header| text(key).and_then(|text| text.parse().ok()).unwrap_or(in_header);
        // GNU tar writes times before 1970 in two's complement.
        let seconds = header.mtime().map_err(unread)? as i64;
        let xattrs = found.all().filter_map(|(key, value)| {
            let name = key.strip_prefix(pax::XATTR.as_bytes())?;
            Some((name.to_vec(), value.to_vec()))
        });
        Ok(Self {
            is_symlink: header.entry_type().is_symlink(),
            permissions: (header.mode().map_err(unread)? & 0o7777) as u16,
            uid: id(number(b"uid", header.uid().map_err(unread)?))?,
            gid: id(number(b"gid", header.gid().map_err(unread)?))?,
            mtime: text(b"mtime").and_then(pax::time_of).unwrap_or(Timestamp { seconds, nanoseconds: 0 }),
            xattrs: xattrs.collect(),
        })
    }

    /// Gives them in an order in which none undoes another: a new owner takes setuid away.
    pub fn give(&self, fs: &Filesystem, ino: Ino) -> Result<(), Failure> {
        let engine = fs.engine();
        let set = |changes| block_on(engine.setattr(ROOT, ino, changes)).map_err(Error::from);
        set(SetAttributes { uid: Some(self.uid), gid: Some(self.gid), ..SetAttributes::default() })?;
        if !self.is_symlink {
            set(SetAttributes { permissions: Some(self.permissions), ..SetAttributes::default() })?;
            for (name, value) in &self.xattrs {
                give_xattr(fs, ino, name, value)?;
            }
        }
        let mtime = Some(SetTime::To(self.mtime));
        set(SetAttributes { mtime, ..SetAttributes::default() })?;
        Ok(())
    }

    /// Gives a directory at once what has no effect on what is made in it, and forgets that.
    pub fn give_what_others_do_not_get(&mut self, fs: &Filesystem, ino: Ino) -> Result<(), Failure> {
        for (name, value) in self.xattrs.extract_if(.., |(name, _)| !name.starts_with(LIST)) {
            give_xattr(fs, ino, &name, &value)?;
        }
        Ok(())
    }

    /// Bytes of extended attributes.
    pub fn xattr_bytes(&self) -> usize {
        self.xattrs.iter().map(|(name, value)| pax::cost(name.len(), value.len())).sum()
    }
}

fn give_xattr(fs: &Filesystem, ino: Ino, name: &[u8], value: &[u8]) -> Result<(), Failure> {
    let given = block_on(fs.engine().setxattr(ino, name, value, XattrMode::Set));
    given.map_err(|error| {
        let name = String::from_utf8_lossy(name).into_owned();
        let failure = Failure::from(Error::from(error));
        let text = format!("the attribute {name}: {failure}");
        failure.with_text(text)
    })
}

fn id(number: u64) -> Result<u32, Failure> {
    u32::try_from(number).map_err(|_| Failure::new("an owner's number is too large"))
}
