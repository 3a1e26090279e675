//! Why an image can't be opened or an operation failed: one line each, with the next step.

use super::holder::LockHolder;
use super::spec::RbdSpec;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use syncline_device::DeviceError;

/// An error of Ceph's functions, as a positive number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Errno(pub(super) i32);

impl Errno {
    /// Tells a function's two kinds of answer apart: a negative one is an error's number, any other the
    /// result.
    pub(super) fn check(returned: i64) -> Result<u64, Self> {
        u64::try_from(returned).map_err(|_| Self(i32::try_from(-returned).unwrap_or(libc::EIO)))
    }

    /// True if an operation can fail like this only when this client has lost the image: it may no
    /// longer write (30), it is on the cluster's blocklist (108), or it lost touch for so long that
    /// librbd gave up (110; operations themselves have no time limit, see `cluster.rs`).
    pub(super) fn means_fenced(self) -> bool {
        matches!(self.0, libc::EROFS | libc::ESHUTDOWN | libc::ETIMEDOUT)
    }

    pub(super) fn io(self) -> io::Error {
        io::Error::from_raw_os_error(self.0)
    }
}

/// Why an image can't be opened, created or taken over.
#[derive(Debug, thiserror::Error)]
pub enum RbdError {
    /// A library of Ceph's is not installed, or can't be loaded.
    #[error(
        "{file} can't be loaded ({why}): install it ('apt install librbd1' on Debian and Ubuntu, \
         'dnf install librbd1' on Fedora, 'zypper install librbd1' on openSUSE, 'pacman -S ceph-libs' on Arch)"
    )]
    NotLoaded {
        /// The file.
        file: &'static str,
        /// The loader's words.
        why: String,
    },
    /// The program has no loader for Ceph's libraries.
    #[error(
        "this is the static program, which can't load {file}: use another one for Ceph, the package for Debian \
         or that of 'cargo install --locked syncline-cli'"
    )]
    Static {
        /// The file.
        file: &'static str,
    },
    /// A library of Ceph's lacks a function.
    #[error("{file} is too old (it has no {symbol}): install that of Ceph 14 or newer")]
    TooOld {
        /// The file.
        file: &'static str,
        /// The function.
        symbol: &'static str,
    },
    /// A pool, an image, a file name or a user with a zero byte, or without any.
    #[error("{what} {text:?} is no name that Ceph takes: check the spelling")]
    BadName {
        /// The kind of thing that it names.
        what: &'static str,
        /// The name.
        text: String,
    },
    /// The configuration file can't be read.
    #[error("Ceph's configuration file {} can't be read ({source}): {}", named(path), conf_step(path))]
    Configuration {
        /// The file, if one was named.
        path: Option<PathBuf>,
        /// The system's error.
        source: io::Error,
    },
    /// A setting that safety depends on is refused by this version of Ceph.
    #[error("Ceph refuses the setting {setting} ({source}): install librbd1 of Ceph 14 or newer")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The cluster does not let us in.
    #[error("the cluster does not let {entity} in ({source}): {}", connect_step(source))]
    Connect {
        /// The user.
        entity: String,
        /// The system's error.
        source: io::Error,
    },
    /// The cluster did not answer in time.
    #[error("the cluster did not answer within {seconds:.0} s: check its monitors and OSDs with 'ceph -s'")]
    NoAnswer {
        /// How long we waited.
        seconds: f32,
    },
    /// There is no such pool.
    #[error("the cluster has no pool '{pool}': 'ceph osd pool ls' lists them")]
    NoPool {
        /// The pool.
        pool: String,
    },
    /// There is no such namespace.
    #[error("the pool '{pool}' has no namespace '{namespace}': 'rbd namespace ls {pool}' lists them")]
    NoNamespace {
        /// The pool.
        pool: String,
        /// The namespace.
        namespace: String,
    },
    /// There is no such image.
    #[error("there is no such image: 'rbd ls {place}' lists them, 'syncline mkfs' makes one")]
    NoImage {
        /// Pool and namespace.
        place: String,
    },
    /// The image that was to be created exists.
    #[error("the image exists: choose another name, or remove it with 'rbd rm {image}'")]
    Exists {
        /// The image, as `rbd` takes it.
        image: String,
    },
    /// The image can't be locked.
    #[error(
        "the image has no exclusive lock, so nothing would keep a second writer away: \
         'rbd feature enable {image} exclusive-lock'"
    )]
    NotLockable {
        /// The image, as `rbd` takes it.
        image: String,
    },
    /// The pool's or the image's own settings replace one that safety or speed depends on.
    #[error(
        "{level} {owner} sets {setting} = {value}, which has to be {wanted}: 'rbd config {level} rm {owner} {setting}'"
    )]
    Overridden {
        /// `pool` or `image`.
        level: &'static str,
        /// Its name.
        owner: String,
        /// The setting.
        setting: String,
        /// Its value.
        value: String,
        /// The value that it has to have.
        wanted: &'static str,
    },
    /// Another client writes the image (promise P7).
    #[error(
        "it is in use by {holder}: unmount it there; if that host died, try again when the cluster has given it up \
         (after 30 s, by default), or at once by 'syncline mount --takeover'"
    )]
    InUse {
        /// The holder of the image.
        holder: LockHolder,
    },
    /// Somebody has locked the image by hand.
    #[error(
        "it has an advisory lock of {client}: if it is not needed, 'rbd lock ls {image}' and 'rbd lock rm {image}'"
    )]
    LockedByHand {
        /// The client that has the lock.
        client: String,
        /// The image, as `rbd` takes it.
        image: String,
    },
    /// The former holder can't be kept from writing.
    #[error(
        "{entity} may not keep {holder} from writing: give it the capabilities mon 'profile rbd' ('ceph auth caps {entity} ...')"
    )]
    MayNotFence {
        /// The user.
        entity: String,
        /// The holder.
        holder: LockHolder,
    },
    /// Anything else that Ceph or the system refused.
    #[error("could not {what} ({source}){}", refused_step(source))]
    Refused {
        /// The action, in words that follow "could not".
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl RbdError {
    pub(super) fn refused(what: &'static str, source: io::Error) -> Self {
        Self::Refused { what, source }
    }

    pub(super) fn errno(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::refused(what, errno.io())
    }

    /// The error of this module inside a device's error, if there is one.
    pub fn of(error: &DeviceError) -> Option<&Self> {
        error.io_error()?.get_ref()?.downcast_ref()
    }

    /// The holder of the image, if the error is that the image is in use.
    pub fn holder(&self) -> Option<&LockHolder> {
        match self {
            Self::InUse { holder } => Some(holder),
            _ => None,
        }
    }

    /// The kind of error, for exit codes.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotLoaded { .. } | Self::Static { .. } | Self::TooOld { .. } | Self::NotLockable { .. } => {
                ErrorKind::Unsupported
            }
            Self::BadName { .. } | Self::Overridden { .. } => ErrorKind::InvalidInput,
            Self::NoPool { .. } | Self::NoNamespace { .. } | Self::NoImage { .. } => ErrorKind::NotFound,
            Self::Exists { .. } => ErrorKind::AlreadyExists,
            Self::NoAnswer { .. } => ErrorKind::TimedOut,
            Self::InUse { .. } | Self::LockedByHand { .. } => ErrorKind::ResourceBusy,
            Self::MayNotFence { .. } => ErrorKind::PermissionDenied,
            Self::Configuration { source, .. }
            | Self::Setting { source, .. }
            | Self::Connect { source, .. }
            | Self::Refused { source, .. } => source.kind(),
        }
    }

    fn wrapped(self) -> Arc<io::Error> {
        Arc::new(io::Error::new(self.kind(), self))
    }

    /// As the device's error for opening this image.
    pub(super) fn opening(self, spec: &RbdSpec) -> DeviceError {
        DeviceError::Open { path: spec.to_string(), source: self.wrapped() }
    }

    /// As the device's error for creating this image.
    pub(super) fn creating(self, spec: &RbdSpec) -> DeviceError {
        DeviceError::Create { path: spec.to_string(), source: self.wrapped() }
    }
}

fn named(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(|| "ceph.conf".to_owned(), |path| path.display().to_string())
}

fn conf_step(path: &Option<PathBuf>) -> &'static str {
    match path {
        Some(_) => "check the path in 'conf='",
        None => "put one at /etc/ceph/ceph.conf, or name it with 'conf='",
    }
}

fn connect_step(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "its key is missing or not the cluster's: compare the keyring with 'ceph auth get' there"
        }
        Some(libc::ENOENT) => {
            "no key was found: put its keyring at /etc/ceph, or set 'keyring' in the configuration"
        }
        Some(libc::ETIMEDOUT) => "no monitor answered: check 'mon_host' in the configuration and the network",
        Some(libc::EINVAL) => "check 'mon_host' and the keyring in the configuration",
        _ => "check the configuration and the network",
    }
}

fn refused_step(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            ": give the user the capabilities mon 'profile rbd' and osd 'profile rbd'"
        }
        Some(libc::EDQUOT) => ": the pool's quota is used up; raise it with 'ceph osd pool set-quota'",
        Some(libc::ENOSPC) => ": the pool is full; add OSDs or delete something ('ceph df')",
        Some(libc::ESHUTDOWN) => ": this client is on the cluster's blocklist; start it again",
        Some(libc::ETIMEDOUT) => ": check the cluster's monitors and OSDs with 'ceph -s'",
        _ => ": see 'ceph -s'",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder() -> LockHolder {
        LockHolder { client: "client.4123".into(), address: "10.0.0.7:0/12".into(), alive: true, about: None }
    }

    #[test]
    fn every_error_is_one_line_and_names_a_next_step() {
        let denied = || Errno(libc::EACCES).io();
        let all = [
            RbdError::NotLoaded { file: "librbd.so.1", why: "not there".into() },
            RbdError::Static { file: "librbd.so.1" },
            RbdError::TooOld { file: "librbd.so.1", symbol: "rbd_new" },
            RbdError::BadName { what: "the image", text: String::new() },
            RbdError::Configuration { path: None, source: denied() },
            RbdError::Configuration { path: Some("/x".into()), source: denied() },
            RbdError::Setting { setting: "rbd_cache", source: denied() },
            RbdError::Connect { entity: "client.a".into(), source: denied() },
            RbdError::NoAnswer { seconds: 30.0 },
            RbdError::NoPool { pool: "p".into() },
            RbdError::NoNamespace { pool: "p".into(), namespace: "n".into() },
            RbdError::NoImage { place: "p".into() },
            RbdError::Exists { image: "p/i".into() },
            RbdError::NotLockable { image: "p/i".into() },
            RbdError::Overridden {
                level: "image",
                owner: "p/i".into(),
                setting: "rbd_cache".into(),
                value: "true".into(),
                wanted: "false",
            },
            RbdError::InUse { holder: holder() },
            RbdError::LockedByHand { client: "client.1".into(), image: "p/i".into() },
            RbdError::MayNotFence { entity: "client.a".into(), holder: holder() },
            RbdError::refused("open it", denied()),
        ];
        for error in all {
            let text = error.to_string();
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(text.contains(": "), "{text}");
            assert!(!text.contains("  "), "{text}");
        }
    }

    #[test]
    fn a_device_error_leads_back_to_who_has_the_image() {
        let spec = RbdSpec::new("p", "i");
        let error = RbdError::InUse { holder: holder() }.opening(&spec);
        assert_eq!(error.io_error().unwrap().kind(), ErrorKind::ResourceBusy);
        assert_eq!(RbdError::of(&error).unwrap().holder(), Some(&holder()));
        assert!(error.to_string().starts_with("cannot open rbd:p/i: it is in use by client.4123"), "{error}");
    }

    #[test]
    fn errors_that_mean_fenced() {
        for number in [30, 108, 110] {
            assert!(Errno(number).means_fenced(), "{number}");
        }
        for number in [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::ENOENT] {
            assert!(!Errno(number).means_fenced(), "{number}");
        }
        assert_eq!(Errno::check(-108), Err(Errno(108)));
        assert_eq!(Errno::check(4096), Ok(4096));
    }
}
