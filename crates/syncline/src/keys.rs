//! Keys of encrypted images.

use crate::{Error, Result};
use syncline_image::Secret;

/// Adds a passphrase, or the contents of a key file, which this process tries on every encrypted image that it opens from
/// now on: bases of forks, snapshots and images that are opened again, too. A line break at the end does not count.
///
/// Opening an encrypted image fails with ENOKEY if there is no key, and with EKEYREJECTED if none of them opens it.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("image");
/// syncline::add_key(b"correct horse battery staple")?;
/// let format = syncline::FormatOptions::new().encrypted(true);
/// let fs = syncline::Filesystem::create(&path, 32 << 20, &format)?;
/// fs.write("/letter", "for nobody else")?;
/// fs.close()?;
/// # std::io::Result::Ok(())
/// ```
pub fn add_key(key: &[u8]) -> Result<()> {
    let secret = Secret::new(key).map_err(|_| Error::Invalid("a key has 1 to 4000 bytes"))?;
    syncline_image::add_key(secret);
    Ok(())
}

/// Forgets the keys that this process has. Images that are open stay open.
pub fn forget_keys() {
    syncline_image::forget_keys();
}
