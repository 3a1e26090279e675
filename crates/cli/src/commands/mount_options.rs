//! The `-o` options of `mount`.

use crate::failure::Failure;
use crate::size;
use std::path::{Path, PathBuf};
use std::time::Duration;
use syncline_fs::types::Algorithm;
use syncline_fs::{AccessTime, Durability};
use syncline_fuse::{DirectIo, MountOptions, Synchronous, Transport};
use syncline_store::{Snapshot, StoreOptions};

/// The largest number of receipts: half a kilobyte each.
const RECEIPTS_MAX: usize = 1 << 20;
/// The message for an unknown option.
const UNKNOWN: &str = "unknown option; 'syncline mount --help' lists them";

/// The names of the `Synchronous` values as options, in order.
const SYNCHRONOUS: [&str; 3] = ["async", "dirsync", "sync"];

/// The options that the kernel reports for every FUSE mount.
pub const KERNEL_WORDS: [&str; 7] =
    ["fd", "rootmode", "user_id", "group_id", "default_permissions", "blksize", "max_read"];

/// The words to suggest for one that is unknown.
const NAMES: [&str; 46] = [
    "ro",
    "rw",
    "snapshot",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noexec",
    "exec",
    "nosymfollow",
    "symfollow",
    "allow_other",
    "no_allow_other",
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
    "diratime",
    "norecovery",
    "sync",
    "dirsync",
    "async",
    "durability",
    "discard",
    "nodiscard",
    "accept-damaged-log",
    "commit",
    "memtable",
    "cache",
    "dirty",
    "compress",
    "nocompress",
    "kept",
    "direct_io",
    "log",
    "check_opens",
    "nocheck_opens",
    "receipts",
    "fuseblk",
    "transport",
    "uring_switch",
    "defaults",
    "nofail",
    "noauto",
    "_netdev",
    "remount",
];

/// Everything that `-o` can choose.
#[derive(Default)]
pub struct MountChoices {
    /// For the store.
    pub store: StoreOptions,
    /// For the filesystem.
    pub fs: syncline_fs::Options,
    /// Mount this snapshot, read-only, instead of the present state.
    pub snapshot: Option<String>,
    /// Give freed blocks of an image file back to its host.
    pub punch_holes: bool,
    /// Where the daemon's messages go.
    pub log: Option<PathBuf>,
    no_suid: bool,
    no_devices: bool,
    no_execution: bool,
    no_symlinks: bool,
    no_recovery: bool,
    allow_other: Option<bool>,
    direct_io: DirectIo,
    check_opens: bool,
    synchronous: Synchronous,
    transport: Transport,
    /// Do not switch FUSE over io_uring on.
    leaves_uring_switch: bool,
    /// Whether the mount gets a block device.
    pub fuseblk: Fuseblk,
}

/// Whether a mount gets a block device, so that sync(2) reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Fuseblk {
    /// Root's mounts, where that is safe.
    Auto,
    /// Or it is refused. Also in a mount namespace that may end with the daemon.
    Always,
    #[default]
    Never,
}

impl MountChoices {
    /// Reads the options; an unknown one is an error, so that a typo never weakens a promise.
    pub fn parse(options: &[String]) -> Result<Self, Failure> {
        let mut choices = Self::default();
        let sloppy = options.iter().any(|option| option.trim() == "sloppy");
        for option in options.iter().map(|option| option.trim()).filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match choices.apply(name, value) {
                // mount(8) asks for this: the list may be meant for several systems.
                Err(text) if sloppy && text == UNKNOWN => {}
                Err(text) if text == UNKNOWN => {
                    let near = crate::near::nearest(name, &NAMES);
                    let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                    return Err(Failure::usage(format!("-o {option}: {text}{near}")));
                }
                applied => applied.map_err(|text| Failure::usage(format!("-o {option}: {text}")))?,
            }
        }
        if matches!(choices.fs.durability, Durability::Ordered(_))
            && choices.synchronous != Synchronous::Never
        {
            return Err(Failure::usage("-o durability=ordered: contradicts sync and dirsync; choose one"));
        }
        if choices.no_recovery && !choices.store.read_only {
            return Err(Failure::usage(
                "-o norecovery: only together with ro, which replays the log in memory only",
            ));
        }
        Ok(choices)
    }

    /// True if this is an option, perhaps with a wrong value.
    pub fn is_option(option: &str) -> bool {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        Self::default().apply(name, value).err().is_none_or(|text| text != UNKNOWN)
    }

    /// Reads the options of a remount. mount(8) also passes on what the kernel reports for the
    /// mount, including FUSE's own options.
    pub fn parse_remount(options: &[String]) -> Result<Self, Failure> {
        let name = |option: &String| option.trim().split('=').next().unwrap_or_default().to_owned();
        let ours = options.iter().filter(|option| !KERNEL_WORDS.contains(&&*name(option)));
        Self::parse(&ours.cloned().collect::<Vec<_>>())
    }

    /// Mounts a snapshot, which is read-only.
    pub fn set_snapshot(&mut self, name: &str) -> Result<(), String> {
        if !Snapshot::is_name(name) {
            return Err("give a snapshot's name; 'syncline snapshot list' shows them".into());
        }
        self.snapshot = Some(name.to_owned());
        self.store.read_only = true;
        Ok(())
    }

    fn apply(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "ro" => self.store.read_only = true,
            // A snapshot stays read-only.
            "rw" => self.store.read_only = self.snapshot.is_some(),
            "snapshot" => self.set_snapshot(value)?,
            "nosuid" => self.no_suid = true,
            "suid" => self.no_suid = false,
            "nodev" => self.no_devices = true,
            "dev" => self.no_devices = false,
            "noexec" => self.no_execution = true,
            "exec" => self.no_execution = false,
            "nosymfollow" => self.no_symlinks = true,
            "symfollow" => self.no_symlinks = false,
            "allow_other" => self.allow_other = Some(true),
            "no_allow_other" => self.allow_other = Some(false),
            "noatime" => self.fs.access_time = AccessTime::Never,
            "relatime" | "atime" => self.fs.access_time = AccessTime::Relative,
            "strictatime" => self.fs.access_time = AccessTime::Always,
            "nodiratime" => self.fs.directory_access_time = false,
            "diratime" => self.fs.directory_access_time = true,
            "norecovery" | "noload" => self.no_recovery = true,
            "sync" => self.synchronous = Synchronous::Everything,
            "dirsync" => self.synchronous = self.synchronous.max(Synchronous::Directories),
            "async" => self.synchronous = Synchronous::Never,
            "durability" => self.fs.durability = value.parse()?,
            "discard" => {
                self.punch_holes = match value {
                    "" => false,
                    "punch" => true,
                    _ => return Err("choose discard or discard=punch".into()),
                };
                self.store.discard = true;
            }
            "nodiscard" => (self.store.discard, self.punch_holes) = (false, false),
            "accept-damaged-log" => self.store.accept_damaged_log = true,
            "commit" => {
                let seconds = value.parse::<u64>().ok().filter(|seconds| *seconds > 0);
                let seconds = seconds.ok_or("give a number of seconds, 1 at least")?;
                self.store.checkpoint_interval = Duration::from_secs(seconds);
            }
            "memtable" => self.store.memtable_bytes = at_least(value, 64 << 10)?,
            "cache" => self.store.node_cache_bytes = at_least(value, 1 << 20)?,
            "dirty" => {
                self.fs.dirty_bytes_max = at_least(value, 1 << 20)? as u64;
                // Data that was written back stays in memory too, until a flush.
                self.store.unflushed_bytes = self.fs.dirty_bytes_max.min(self.store.unflushed_bytes);
            }
            "compress" => {
                self.fs.compression = match value {
                    "" | "zstd" => Some(Algorithm::Zstd),
                    "lz4" => Some(Algorithm::Lz4),
                    "no" => None,
                    _ => return Err("choose compress, compress=lz4, compress=zstd or compress=no".into()),
                }
            }
            "nocompress" => self.fs.compression = None,
            "kept" => self.fs.kept_bytes_max = at_least(value, 0)? as u64,
            "direct_io" => {
                self.direct_io = match value {
                    "never" => DirectIo::Never,
                    "synced" => DirectIo::Synced,
                    "write" => DirectIo::WriteOnly,
                    "always" => DirectIo::Always,
                    _ => return Err("choose never, synced, write or always".into()),
                }
            }
            "log" if value.is_empty() => return Err("give the name of a file".into()),
            "log" => self.log = Some(value.into()),
            "check_opens" => self.check_opens = true,
            "nocheck_opens" => self.check_opens = false,
            "atomic_writes" => {
                return Err(
                    "there is no such option any more: leave it out (SQLite is as fast with WAL)".into()
                );
            }
            "writeback_cache" => {
                return Err(
                    "there is no such option any more: leave it out, and each write comes at once".into()
                );
            }
            "receipts" => {
                let count = value.parse().ok().filter(|count| *count <= RECEIPTS_MAX);
                self.fs.receipts_max = count.ok_or(format!("give a number up to {RECEIPTS_MAX}"))?;
            }
            // Several names are joined by colons, since commas separate options.
            "ablate" => {
                for name in value.split(':') {
                    self.store.lab.ablations.insert(name.parse()?);
                }
            }
            "fuseblk" => {
                self.fuseblk = match value {
                    "auto" => Fuseblk::Auto,
                    "always" => Fuseblk::Always,
                    "never" => Fuseblk::Never,
                    _ => return Err("choose auto, always or never".into()),
                }
            }
            "transport" => {
                self.transport = match value {
                    "auto" => Transport::Auto,
                    "uring" => Transport::Uring,
                    "classic" => Transport::Classic,
                    _ => return Err("choose auto, uring or classic".into()),
                }
            }
            "uring_switch" => {
                self.leaves_uring_switch = match value {
                    "set" => false,
                    "leave" => true,
                    _ => return Err("choose set or leave".into()),
                }
            }
            // Options of mount(8) and fstab(5) that describe the default, or are not for us.
            "defaults" | "user" | "nouser" | "users" | "nofail" | "auto" | "noauto" | "_netdev"
            | "sloppy" | "remount" | "silent" | "loud" | "group" | "owner" => {}
            // lazytime: an access time by itself never causes a log write; it goes along with one.
            // iversion: inode versions concern only the kernel.
            "lazytime" | "nolazytime" | "iversion" | "noiversion" | "acl" | "user_xattr" => {}
            // Options for other programs that read fstab.
            _ if name.starts_with("x-") || name.starts_with("X-") || name == "comment" => {}
            _ => return Err(UNKNOWN.into()),
        }
        Ok(())
    }

    /// The class of files and directories that have none of their own.
    pub fn class(&self) -> Durability {
        self.fs.durability
    }

    /// The option that makes changes durable before they are answered, or "async".
    pub fn synchronous(&self) -> &'static str {
        SYNCHRONOUS[self.synchronous as usize]
    }

    /// The option that promises more than a mount of this class and synchronous option does.
    pub fn promised_beyond(&self, class: &str, synchronous: &str) -> Option<String> {
        let promised = SYNCHRONOUS.iter().position(|known| *known == synchronous).unwrap_or(0);
        if self.synchronous as usize > promised {
            return Some(self.synchronous().to_owned());
        }
        let is_promised =
            class == Durability::Strict.to_string() || promised == Synchronous::Everything as usize;
        (self.fs.durability == Durability::Strict && !is_promised).then(|| "durability=strict".to_owned())
    }

    /// The options that a remount can't change, as text to compare.
    pub fn kept_for_life(&self) -> String {
        let (store, fs) = (&self.store, &self.fs);
        let times = (fs.access_time, fs.directory_access_time);
        let memory = (store.memtable_bytes, store.node_cache_bytes, fs.dirty_bytes_max, fs.kept_bytes_max);
        let space = (store.discard, self.punch_holes, fs.compression);
        let kept = (self.no_recovery, store.accept_damaged_log, store.checkpoint_interval, fs.receipts_max);
        let promised = (fs.durability, self.synchronous, &self.snapshot, &self.log);
        let others = self.allow_other.unwrap_or(rustix::process::geteuid().is_root());
        let kernel = (others, self.direct_io, self.check_opens, self.transport, self.fuseblk);
        format!(
            "{times:?} {memory:?} {space:?} {kept:?} {promised:?} {kernel:?} {:?}",
            self.leaves_uring_switch
        )
    }

    /// True if FUSE over io_uring should be switched on where it is off.
    pub fn switches_uring_on(&self) -> bool {
        self.transport != Transport::Classic && !self.leaves_uring_switch
    }

    /// The options for the FUSE session.
    pub fn kernel(&self, image: &Path) -> MountOptions {
        let mut options = MountOptions::new(image);
        options.kernel.read_only = self.store.read_only;
        options.kernel.no_suid |= self.no_suid;
        options.kernel.no_devices |= self.no_devices;
        options.kernel.no_execution |= self.no_execution;
        options.kernel.no_symlinks |= self.no_symlinks;
        options.kernel.allow_other = self.allow_other;
        options.direct_io = self.direct_io;
        options.check_opens = self.check_opens;
        options.synchronous = self.synchronous;
        options.transport = self.transport;
        options
    }
}

fn at_least(value: &str, least: usize) -> Result<usize, String> {
    let bytes = size::parse(value)? as usize;
    if bytes < least { Err(format!("at least {}", size::show(least as u64))) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountChoices, Failure> {
        MountChoices::parse(&text.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_applied() {
        let choices = parse("ro,commit=5,memtable=1MiB,receipts=0").unwrap();
        assert_eq!(choices.fs.receipts_max, 0);
        assert!(choices.store.read_only);
        assert_eq!(choices.store.checkpoint_interval, Duration::from_secs(5));
        assert_eq!(choices.store.memtable_bytes, 1 << 20);
        let choices = parse("ablate=xattr-skip:flush-elide,ablate=dir-bulk").unwrap();
        let names: Vec<_> = choices.store.lab.ablations.iter().map(|ablation| ablation.name()).collect();
        assert_eq!(names, ["xattr-skip", "flush-elide", "dir-bulk"]);
    }

    #[test]
    fn the_stronger_of_sync_and_dirsync_counts() {
        let synchronous = |text: &str| parse(text).unwrap().kernel(Path::new("image")).synchronous;
        assert_eq!(synchronous("noatime"), Synchronous::Never);
        assert_eq!(synchronous("dirsync"), Synchronous::Directories);
        assert_eq!(
            (synchronous("sync,dirsync"), synchronous("dirsync,sync")),
            (Synchronous::Everything, Synchronous::Everything)
        );
        assert_eq!(synchronous("sync,async"), Synchronous::Never);
        assert_eq!(parse("strictatime").unwrap().fs.access_time, AccessTime::Always);
    }

    #[test]
    fn an_option_that_promises_more_than_the_mount_is_named() {
        let beyond =
            |text: &str, class, synchronous| parse(text).unwrap().promised_beyond(class, synchronous);
        for promised in [("fsync", "async"), ("ordered:5", "async"), ("strict", "dirsync"), ("fsync", "sync")]
        {
            assert_eq!(beyond("noatime", promised.0, promised.1), None);
        }
        assert_eq!(beyond("sync", "fsync", "dirsync").as_deref(), Some("sync"));
        assert_eq!(beyond("dirsync", "ordered:5", "async").as_deref(), Some("dirsync"));
        // A directory may have another class.
        assert_eq!(beyond("sync", "strict", "async").as_deref(), Some("sync"));
        assert_eq!(beyond("durability=strict", "fsync", "dirsync").as_deref(), Some("durability=strict"));
        assert_eq!(beyond("durability=strict", "strict", "async"), None);
        assert_eq!(beyond("durability=strict,dirsync", "fsync", "sync"), None);
    }

    #[test]
    fn options_that_were_removed_say_so() {
        let told = |text: &str| parse(text).err().unwrap().to_string();
        for option in ["writeback_cache", "atomic_writes"] {
            assert!(told(&format!("sloppy,{option}")).contains("no such option any more"));
        }
    }

    #[test]
    fn compress_is_zstandard_unless_it_says_otherwise() {
        let compression = |text: &str| parse(text).unwrap().fs.compression;
        assert_eq!((compression("noatime"), compression("compress,nocompress")), (None, None));
        assert_eq!(compression("compress"), Some(Algorithm::Zstd));
        assert_eq!(compression("compress=lz4"), Some(Algorithm::Lz4));
        assert!(parse("compress=gzip").is_err_and(|failure| failure.to_string().contains("lz4")));
    }

    #[test]
    fn words_of_fstab_have_their_meaning() {
        let choices = parse("nodiratime,lazytime,nosymfollow,iversion,norecovery,ro").unwrap();
        assert!(!choices.fs.directory_access_time && choices.store.read_only);
        assert!(choices.kernel(Path::new("image")).kernel.no_symlinks);
        assert!(parse("norecovery").is_err_and(|failure| failure.to_string().contains("together with ro")));
        assert!(parse("user_id=0").is_err(), "only a remount has this from the kernel");
        let words = "remount,ro,noatime,user_id=0,group_id=0,default_permissions,allow_other";
        let words: Vec<String> = words.split(',').map(str::to_owned).collect();
        assert!(MountChoices::parse_remount(&words).unwrap().store.read_only);
    }

    #[test]
    fn the_transport_is_passed_on_and_the_last_word_counts() {
        let transport = |text: &str| parse(text).unwrap().kernel(Path::new("image")).transport;
        assert_eq!(transport(""), Transport::default());
        assert_eq!(transport("transport=uring"), Transport::Uring);
        assert_eq!(transport("transport=uring,transport=classic"), Transport::Classic);
        assert!(parse("transport=telepathy").is_err());
    }

    #[test]
    fn unknown_and_impossible_options_are_refused() {
        assert!(parse("nobarrier").is_err_and(|failure| failure.to_string().contains("unknown option")));
        // Options for other readers of fstab are ignored, and mount(8) may ask to ignore all
        // unknown ones.
        assert!(
            parse("discard").unwrap().store.discard && !parse("discard,nodiscard").unwrap().store.discard
        );
        assert!(parse("x-systemd.automount,X-mount.mkdir,comment=ours,nofail").is_ok());
        assert!(parse("sloppy,nobarrier").is_ok() && parse("sloppy,commit=soon").is_err());
        assert!(parse("commit=soon").is_err() && parse("commit=0").is_err());
        assert!(parse("memtable=1").is_err());
        assert!(parse("receipts=all").is_err() && parse("receipts=9999999").is_err());
        assert!(parse("ablate=fsync").is_err_and(|failure| failure.to_string().contains("flush-group")));
    }

    #[test]
    fn a_known_option_is_suggested_for_one_with_a_typo() {
        let told = |text: &str| parse(text).err().unwrap().to_string();
        assert!(told("noatim").contains("did you mean noatime?"), "{}", told("noatim"));
        assert!(told("compres=lz4").contains("did you mean compress?"));
        assert!(!told("qqqq").contains("did you mean"));
        let unknown =
            |name: &&str| MountChoices::default().apply(name, "").is_err_and(|text| text == UNKNOWN);
        assert_eq!(NAMES.into_iter().find(|name| unknown(name)), None);
    }
}
