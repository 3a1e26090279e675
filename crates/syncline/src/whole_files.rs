//! Files as a whole: read, written, copied.

use crate::error::{Error, Result, about};
use crate::filesystem::Filesystem;
use crate::open_options::OpenOptions;
use std::path::Path;
use syncline_fs::FsError;

impl Filesystem {
    /// The whole contents of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.open_file(&path)?.contents().map_err(about("read", &path))
    }

    /// The whole contents of a file of text; an error of the kind `InvalidData` if it is not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        String::from_utf8(self.read(&path)?).map_err(|_| about("read", &path)(Error::NotText))
    }

    /// Makes a file of these contents, in place of what it had. Not durable before it is synced, and a crash before may leave it
    /// empty: to have the old contents or the new, write another file and rename it.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// fs.write("/settings.new", "colour = blue")?;
    /// fs.rename("/settings.new", "/settings")?;
    /// assert_eq!(fs.read_to_string("/settings")?, "colour = blue");
    /// # std::io::Result::Ok(())
    /// ```
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.create_file(&path)?.write_all_at(contents.as_ref(), 0).map_err(about("write", &path))
    }

    /// Makes `to` a file of the contents and permission bits of `from`, and returns its size. Whole blocks are shared, not copied.
    ///
    /// ```
    /// # let fs = syncline::Filesystem::in_memory(32 << 20)?;
    /// fs.write("/model", vec![7; 1 << 20])?;
    /// assert_eq!(fs.copy("/model", "/copy")?, 1 << 20);
    /// assert_eq!(fs.open_file("/copy")?.usage()?.shared_bytes, 1 << 20);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let from = self.open_file(from)?;
        let metadata = from.metadata()?;
        if metadata.is_dir() {
            return Err(FsError::IsDirectory.into());
        }
        let to = OpenOptions::new().write(true).create(true).mode(metadata.permissions()).open(self, to)?;
        if to.ino() == from.ino() {
            // Emptying it first would lose what is to be copied.
            return Err(Error::Invalid("a file can't be copied to itself"));
        }
        to.set_len(0)?;
        let copied = from.copy_range_to(0, &to, 0, u64::MAX)?;
        to.set_permissions(metadata.permissions())?;
        Ok(copied)
    }
}
