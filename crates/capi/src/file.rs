//! Open files.

use crate::arguments::{hand_out, reference, room, slice, string, take_back};
use crate::failure::{Failure, answer, done};
use crate::image::syncline_fs;
use std::ffi::{c_char, c_int, c_void};
use std::io::Write;
use syncline::{File, OpenOptions};

/// An open file.
pub struct syncline_file {
    pub(crate) file: File,
    /// All writes go to the end of the file.
    append: bool,
}

/// The supported flags of open(2). Flags about the process's descriptor have no effect here.
const KNOWN: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_CLOEXEC
    | libc::O_LARGEFILE;

fn options(flags: c_int, mode: u32) -> Result<OpenOptions, Failure> {
    if flags & !KNOWN != 0 {
        return Err(Failure::Invalid("a flag that is none of O_CREAT, O_EXCL, O_TRUNC, O_APPEND"));
    }
    let has = |flag| flags & flag != 0;
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(Failure::Invalid("neither O_RDONLY nor O_WRONLY nor O_RDWR")),
    };
    let (create, append) = (has(libc::O_CREAT), has(libc::O_APPEND) && write);
    let mut options = OpenOptions::new();
    options.read(read).write(write && !append).append(append).truncate(has(libc::O_TRUNC) && !append);
    options.create(create).create_new(create && has(libc::O_EXCL)).mode((mode & 0o7777) as u16);
    Ok(options)
}

/// Refuses offsets past 2^63, where no file has bytes.
fn check_offset(offset: u64, count: usize) -> Result<(), Failure> {
    match offset.checked_add(count as u64).map(i64::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => Err(Failure::Invalid("an offset past all sizes")),
    }
}

/// Opens a file.
///
/// # Safety
/// `fs` is NULL or an open handle, `path` a string; `file` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_open(
    fs: *const syncline_fs,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut syncline_file,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        hand_out(file, || {
            let options = options(flags, mode)?;
            let opened = options.open(&reference(fs, "fs")?.filesystem, string(path, "path")?)?;
            let append = flags & libc::O_APPEND != 0;
            if append && flags & libc::O_TRUNC != 0 {
                opened.set_len(0)?;
            }
            Ok(syncline_file { file: opened, append })
        })
    })
}

/// Opens a new file without a name.
///
/// # Safety
/// `fs` is NULL or an open handle, `directory` a string; `file` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_unnamed(
    fs: *const syncline_fs,
    directory: *const c_char,
    file: *mut *mut syncline_file,
) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe {
        hand_out(file, || {
            let file = reference(fs, "fs")?.filesystem.create_unnamed(string(directory, "directory")?)?;
            Ok(syncline_file { file, append: false })
        })
    })
}

/// Gives an open file a name.
///
/// # Safety
/// `file` is NULL or an open handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_link(file: *const syncline_file, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise for each pointer.
    done(|| unsafe { Ok(reference(file, "file")?.file.link(string(path, "path")?)?) })
}

/// Closes a file.
///
/// # Safety
/// `file` is NULL or an open handle, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_file_close(file: *mut syncline_file) -> c_int {
    // SAFETY: the caller's promise.
    done(|| unsafe { take_back(file) }.map(drop))
}

/// Reads; fewer bytes than asked for only at the end of the file, or when an error follows.
///
/// # Safety
/// `file` is NULL or an open handle; `buffer` has room for `count` bytes, and nobody else uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_pread(
    file: *const syncline_file,
    buffer: *mut c_void,
    count: usize,
    offset: u64,
) -> i64 {
    answer(|| {
        // SAFETY: the caller's promise for each pointer.
        let (handle, buffer) = unsafe { (reference(file, "file")?, room(buffer, count, "buffer")?) };
        check_offset(offset, count)?;
        let mut read = 0;
        while read < count {
            match handle.file.read_at(&mut buffer[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(bytes) => read += bytes,
                Err(error) if read == 0 => return Err(error.into()),
                Err(_) => break,
            }
        }
        Ok(read as i64)
    })
}

/// Writes; fewer bytes than asked for only when an error follows.
///
/// # Safety
/// `file` is NULL or an open handle; `data` has `count` bytes, which nobody changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_pwrite(
    file: *const syncline_file,
    data: *const c_void,
    count: usize,
    offset: u64,
) -> i64 {
    answer(|| {
        // SAFETY: the caller's promise for each pointer.
        let (handle, data) = unsafe { (reference(file, "file")?, slice(data.cast::<u8>(), count, "data")?) };
        check_offset(offset, count)?;
        let mut written = 0;
        while written < count {
            let result = match handle.append {
                true => (&handle.file).write(&data[written..]).map_err(Failure::from),
                false => {
                    handle.file.write_at(&data[written..], offset + written as u64).map_err(Failure::from)
                }
            };
            match result {
                Ok(bytes) => written += bytes,
                Err(error) if written == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(written as i64)
    })
}

/// Copies between files, sharing whole blocks.
///
/// # Safety
/// Both are NULL or open handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_copy_range(
    from: *const syncline_file,
    offset: u64,
    to: *const syncline_file,
    to_offset: u64,
    count: u64,
) -> i64 {
    // SAFETY: the caller's promise for each pointer.
    answer(|| unsafe {
        let (from, to) = (reference(from, "from")?, reference(to, "to")?);
        let copied = from.file.copy_range_to(offset, &to.file, to_offset, count)?;
        // Files end at 2^63 - 1.
        Ok(copied as i64)
    })
}

/// Cuts or extends a file.
///
/// # Safety
/// `file` is NULL or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_ftruncate(file: *const syncline_file, size: u64) -> c_int {
    // SAFETY: the caller's promise.
    done(|| Ok(unsafe { reference(file, "file") }?.file.set_len(size)?))
}
