//! Mounting as an ordinary user, through the setuid helper fusermount3 of the fuse3 package.
//!
//! The helper opens /dev/fuse, mounts, and sends the descriptor back over a socket named by the
//! environment variable `_FUSE_COMMFD`. We pass the socket as its standard input, so no other
//! descriptor need be inherited.

use super::{FUSE_DEVICE, KernelOptions, SUBTYPE};
use crate::error::MountError;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Where to look for the helper if it is not in the search path.
const USUAL_PLACES: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin"];
/// The helper of fuse3, or that of fuse2, which speaks the same protocol.
const NAMES: [&str; 2] = ["fusermount3", "fusermount"];

/// Mounts a new connection.
pub(super) fn mount(path: &Path, options: &KernelOptions) -> Result<OwnedFd, MountError> {
    // The helper opens the device with its caller's rights and says little if that fails, so try it
    // first.
    drop(OpenOptions::new().read(true).write(true).open(FUSE_DEVICE).map_err(MountError::fuse_device)?);
    let helper = find().ok_or(MountError::FusermountMissing)?;
    let failed = |source| MountError::mount(path, source);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let child = Command::new(helper)
        .arg("-o")
        .arg(option_list(options))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // The helper's end of the socket is closed in this process by now, so this returns when the
    // helper exits.
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(failed)?;
    match received.map_err(failed)? {
        Some(descriptor) if output.status.success() => Ok(descriptor),
        _ => Err(refusal(path, message_of(&output.stderr))),
    }
}

/// Turns the helper's message into an error: it gives its reasons only in words.
fn refusal(path: &Path, message: String) -> MountError {
    match message.contains("no write access to mountpoint") || message.contains("not owned by user") {
        true => MountError::MountPointOfAnother { path: path.to_owned() },
        false => MountError::Fusermount { message },
    }
}

/// Unmounts; `lazy` detaches the mount even while it is in use.
pub(super) fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let helper = find().ok_or(MountError::FusermountMissing)?;
    let mut command = Command::new(helper);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| MountError::Unmount { path: path.to_owned(), source: Arc::new(source) })?;
    if output.status.success() {
        return Ok(());
    }
    let message = message_of(&output.stderr);
    // The helper gives its reasons only in words; this one comes from strerror(EBUSY).
    if message.contains("busy") {
        return Err(MountError::Busy { path: path.to_owned() });
    }
    Err(MountError::Fusermount { message })
}

/// Finds the helper.
fn find() -> Option<PathBuf> {
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> =
        std::env::split_paths(&search_path).chain(USUAL_PLACES.iter().map(PathBuf::from)).collect();
    NAMES.iter().flat_map(|name| places.iter().map(move |place| place.join(name))).find(|path| path.is_file())
}

/// The argument of `-o`.
fn option_list(options: &KernelOptions) -> OsString {
    let mut list = b"default_permissions,noatime,subtype=".to_vec();
    list.extend_from_slice(SUBTYPE.as_bytes());
    for (chosen, option) in [
        (options.allow_other == Some(true), "allow_other"),
        (options.read_only, "ro"),
        (options.no_suid, "nosuid"),
        (options.no_devices, "nodev"),
        (options.no_execution, "noexec"),
        (options.no_symlinks, "nosymfollow"),
    ] {
        if chosen {
            list.push(b',');
            list.extend_from_slice(option.as_bytes());
        }
    }
    list.extend_from_slice(b",fsname=");
    list.extend(escape(&options.source));
    OsString::from_vec(list)
}

/// Escapes an option's value: a comma would end the option.
fn escape(value: &OsStr) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(value.len());
    for &byte in value.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    escaped
}

/// The helper's message, without its name.
fn message_of(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    let text =
        text.split_once(": ").filter(|(name, _)| name.contains("fusermount")).map_or(text, |(_, rest)| rest);
    if text.is_empty() { "it did not say why".into() } else { text.into() }
}

/// Waits for a descriptor; `None` when the other end closed without sending one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = 0u8;
    let mut piece = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // Room for one control message with one descriptor, aligned as such a message must be.
    let mut control = [MaybeUninit::<libc::cmsghdr>::zeroed(); 4];
    // SAFETY: a msghdr of all zeros is valid and means "nothing".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let received = loop {
        // SAFETY: every pointer in `message` refers to a local that outlives the call, with its
        // true length.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if received >= 0 {
            break received;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    if received == 0 {
        return Ok(None);
    }
    // SAFETY: the kernel filled `control` and set `msg_controllen` to what it wrote.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so it points to a whole header inside `control`.
    let (level, kind, len) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
    // SAFETY: plain arithmetic.
    let expected = unsafe { libc::CMSG_LEN(size_of::<libc::c_int>() as u32) };
    if (level, kind) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) || len as u64 != u64::from(expected) {
        return Ok(None);
    }
    // SAFETY: the length says that one descriptor follows the header; its alignment is not
    // promised.
    let descriptor = unsafe { libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned() };
    // SAFETY: the kernel just created it for this process, and nothing else refers to it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_escaped_and_listed() {
        let mut options = KernelOptions::new("/a,b\\c.img");
        options.read_only = true;
        options.allow_other = Some(true);
        let list = option_list(&options).into_string().unwrap();
        assert!(list.ends_with(r",fsname=/a\,b\\c.img"), "{list}");
        assert!(
            list.contains(",ro,") && list.contains(",allow_other,") && list.contains("default_permissions")
        );
        assert!(!option_list(&KernelOptions::new("x")).into_string().unwrap().contains("allow_other"));
    }

    #[test]
    fn an_end_without_a_descriptor_is_noticed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive_descriptor(&ours).unwrap().is_none());
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &theirs, b"x").unwrap();
        assert!(receive_descriptor(&ours).unwrap().is_none());
    }

    #[test]
    fn a_mount_point_of_another_is_no_trouble_of_fuse() {
        for said in ["user has no write access to mountpoint /mnt", "mountpoint /mnt not owned by user"] {
            let error = refusal(Path::new("/mnt"), said.into());
            assert!(matches!(error, MountError::MountPointOfAnother { .. }), "{said}");
        }
        assert!(matches!(refusal(Path::new("/mnt"), "nope".into()), MountError::Fusermount { .. }));
    }

    #[test]
    fn messages_lose_the_helpers_name() {
        assert_eq!(message_of(b"/usr/bin/fusermount3: mount failed: nope\n"), "mount failed: nope");
        assert_eq!(message_of(b""), "it did not say why");
    }
}
