//! File handles (name_to_handle_at, open_by_handle_at), as NFS servers and backup programs use
//! them: they still name an inode long after the kernel has forgotten it.

use super::TestMount;
use crate::support::Caches;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Error, Read, Result};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `struct file_handle` with room for the longest.
#[derive(Clone)]
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

fn handle(path: &Path) -> Result<Handle> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
    let mut mount = 0;
    let place = std::ptr::from_mut(&mut handle).cast();
    // SAFETY: the path is NUL-terminated, the handle has the length that it states, and both
    // outlive the call.
    match unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), place, &raw mut mount, 0) } {
        0 => Ok(handle),
        _ => Err(Error::last_os_error()),
    }
}

fn open(mount: &File, handle: &Handle) -> Result<File> {
    let mut handle = handle.clone();
    // SAFETY: the handle outlives the call.
    let fd = unsafe {
        libc::open_by_handle_at(
            mount.as_raw_fd(),
            std::ptr::from_mut(&mut handle).cast(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call returned this descriptor to nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn read(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn handles_outlive_the_kernels_memory() {
    let Some(mount) = TestMount::or_skip() else { return };
    let caches = Caches::alone();
    let (dir, file) = (mount.path().join("dir"), mount.path().join("dir/file"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "found again").unwrap();
    fs::write(mount.path().join("gone"), "x").unwrap();
    let root = File::open(mount.path()).unwrap();
    let handles: Vec<Handle> =
        [&dir, &file, &mount.path().join("gone")].into_iter().map(|path| handle(path).unwrap()).collect();
    let numbers: Vec<u64> = [&dir, &file].into_iter().map(|path| fs::metadata(path).unwrap().ino()).collect();
    caches.drop_all();
    assert_eq!(open(&root, &handles[0]).unwrap().metadata().unwrap().ino(), numbers[0]);
    caches.drop_all();
    assert_eq!(open(&root, &handles[1]).unwrap().metadata().unwrap().ino(), numbers[1]);
    assert_eq!(read(open(&root, &handles[1]).unwrap()), "found again");
    // A handle opens its file under any name that the file has by then.
    fs::rename(&file, mount.path().join("moved")).unwrap();
    caches.drop_all();
    assert_eq!(read(open(&root, &handles[1]).unwrap()), "found again");
    fs::remove_file(mount.path().join("gone")).unwrap();
    caches.drop_all();
    let stale = open(&root, &handles[2]).map(drop).unwrap_err();
    assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
    // Numbers are never reused, so a handle never names another file.
    for index in 0..100 {
        fs::write(mount.path().join(format!("new {index}")), "another").unwrap();
    }
    assert_eq!(open(&root, &handles[2]).map(drop).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    drop(root);
    mount.unmount();
}
