//! Mounts a filesystem that lives in memory, until it is unmounted: `memory_mount DIRECTORY
//! [never|write-only|always]`. The second word says which opens bypass the page cache.

#[path = "../tests/support/filesystem.rs"]
mod filesystem;

use filesystem::TestFilesystem;
use std::path::Path;
use syncline_fuse::{DirectIo, MountOptions, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().ok_or("name a directory to mount at")?;
    let mut options = MountOptions::new("memory");
    options.direct_io = match arguments.get(1).map(String::as_str) {
        None | Some("never") => DirectIo::Never,
        Some("write-only") => DirectIo::WriteOnly,
        Some("always") => DirectIo::Always,
        Some(other) => return Err(format!("{other} is none of never, write-only, always").into()),
    };
    let filesystem = TestFilesystem::new(64 << 30);
    let mounted = Session::mount(filesystem.fs.clone(), Path::new(path), &options)?;
    println!("mounted at {}", mounted.path().display());
    mounted.run_until_unmounted()?;
    filesystem.close();
    Ok(())
}
