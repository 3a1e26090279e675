//! Copies a directory of the host into an image, with permissions, times and symbolic links.
//!
//!     cargo run --example import backup.img ~/documents

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use syncline::{Filesystem, FormatOptions, ImageOptions};

/// Copies the contents of `from` to `to`, and returns the number of files.
pub fn import(filesystem: &Filesystem, from: &Path, to: &Path) -> io::Result<u64> {
    filesystem.create_dir_all(to)?;
    let mut files = 0;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let metadata = fs::symlink_metadata(&source)?;
        if metadata.is_symlink() {
            filesystem.symlink(fs::read_link(&source)?, &target)?;
            continue;
        }
        if metadata.is_dir() {
            files += import(filesystem, &source, &target)?;
        } else if metadata.is_file() {
            io::copy(&mut fs::File::open(&source)?, &mut filesystem.create_file(&target)?)?;
            files += 1;
        } else {
            eprintln!("left out, neither file nor directory: {}", source.display());
            continue;
        }
        filesystem.set_permissions(&target, (metadata.mode() & 0o7777) as u16)?;
        filesystem.set_times(&target, Some(metadata.accessed()?), Some(metadata.modified()?))?;
    }
    Ok(files)
}

/// Copies a directory into the root of an image, which is made if there is none.
pub fn run(image: &Path, from: &Path) -> io::Result<u64> {
    let (format, options) = (FormatOptions::default(), ImageOptions::default());
    let filesystem = Filesystem::open_or_create(image, 256 << 20, &format, options)?;
    let files = import(&filesystem, from, Path::new("/"))?;
    // Not a flush for each file: one for all.
    filesystem.sync()?;
    filesystem.close()?;
    Ok(files)
}

#[allow(dead_code, reason = "the tests include this file")]
fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [image, from] = &arguments[..] else {
        return Err(io::Error::other("usage: import IMAGE DIRECTORY"));
    };
    println!("{} files", run(Path::new(image), Path::new(from))?);
    Ok(())
}
