//! `mount -o remount`: changes the options that the kernel enforces by itself, and reports those
//! that stay as they were.

use super::mount_options::{KERNEL_WORDS, MountChoices};
use crate::failure::{Cause, Failure, Outcome};
use std::path::Path;
use std::process::ExitCode;
use syncline_fuse::{MountError, control, mounts};

/// Options without a value that a mount keeps for its whole life.
const FIXED_WORDS: [&str; 10] = [
    "noatime",
    "relatime",
    "atime",
    "strictatime",
    "nodiratime",
    "diratime",
    "allow_other",
    "discard",
    "compress",
    "accept-damaged-log",
];

/// Performs `mount -o remount` for mount(8), which passes on the kernel's options of the mount
/// together with those asked for.
pub fn for_mount(directory: &Path, options: &[String]) -> Outcome {
    // If the directory is not there, the remount says so.
    let whole = directory.canonicalize().unwrap_or_default();
    let entry = mounts()?.into_iter().rfind(|entry| entry.mount_point == whole);
    let shown = entry.map(|entry| entry.options.split(',').map(str::to_owned).collect::<Vec<_>>());
    remount(directory, options, &shown.unwrap_or_default())
}

/// Changes the options that the kernel enforces by itself, and reports those that it can't change,
/// except for `shown`. The daemon's own mode does not change: a mount that began read-only can't be
/// made writable.
pub fn remount(directory: &Path, options: &[String], shown: &[String]) -> Outcome {
    let choices = MountChoices::parse_remount(options)?;
    // For another filesystem, the kernel would report an invalid argument.
    let daemon: serde_json::Value =
        serde_json::from_str(&control::text(directory, "daemon")?).unwrap_or_default();
    if !choices.store.read_only {
        let stats: serde_json::Value = serde_json::from_str(&control::stats(directory)?).unwrap_or_default();
        if let Some(reason) = stats["read_only"].as_str() {
            let text = format!("{}: its daemon can't write: {reason}", directory.display());
            return Err(Failure::new(text).next("unmount it, and mount it with -o rw"));
        }
        let promised = |name: &str| stats["daemon"][name].as_str().unwrap_or_default();
        if let Some(asked) = choices.promised_beyond(promised("durability"), promised("synchronous")) {
            let directory = directory.display();
            let text = format!("{directory}: a mount can't become one with -o {asked}");
            return Err(Failure::new(text).next(format!("unmount it, and mount it with -o {asked}")));
        }
    }
    syncline_fuse::remount(directory, &choices.kernel(Path::new("")).kernel).map_err(
        |error| match error {
            MountError::NotPermitted { source } => {
                let text = format!("{}: only root may remount: {source}", directory.display());
                Failure::of(Cause::Permission, text).next("unmount it, and mount it with the other options")
            }
            error => error.into(),
        },
    )?;
    if choices.store.read_only && daemon["read_only"] != true {
        // As with the kernel's filesystems: nothing is left in memory when it returns.
        control::sync(directory)?;
    }
    let mounted = daemon["options"].as_str().map(str::to_owned);
    let stays = |option: &String| shown.contains(option) || changes_nothing(mounted.as_deref(), option);
    let left: Vec<_> = left_by_remount(options).into_iter().filter(|option| !stays(option)).collect();
    if !left.is_empty() {
        let left = left.join(", ");
        note!(
            "syncline: remounted; these stay as they were: {left}; to change them unmount, and mount again"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// True if a mount with these options is as it would be with this one besides. (Some contradict each
/// other only where the mount can be written.)
fn changes_nothing(mounted: Option<&str>, option: &str) -> bool {
    let Some(mounted) = mounted else { return false };
    let kept = |options: &[&str]| {
        let options: Vec<String> = options.iter().map(|text| (*text).to_owned()).collect();
        MountChoices::parse_remount(&options).ok().map(|choices| choices.kept_for_life())
    };
    let own: Vec<&str> = mounted.split(',').collect();
    kept(&own).is_some_and(|before| kept(&[&own[..], &[option]].concat()) == Some(before))
}

/// The options that a remount leaves unchanged: all with a value, and some words.
fn left_by_remount(options: &[String]) -> Vec<String> {
    let names = options.iter().flat_map(|list| list.split(',')).map(str::trim);
    let left = names.filter(|name| {
        let word = name.split('=').next().unwrap_or_default();
        let is_for_others = word.starts_with("x-") || word.starts_with("X-") || word == "comment";
        (name.contains('=') && !is_for_others && !KERNEL_WORDS.contains(&word)) || FIXED_WORDS.contains(&word)
    });
    left.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_the_mount_has_already_changes_nothing() {
        for (mounted, option) in [
            ("", "relatime"),
            ("", "diratime"),
            ("noatime", "noatime"),
            ("ro,commit=5,compress", "compress=zstd"),
            ("commit=5", "commit=5"),
            ("memory=64MiB", "memory=65536KiB"),
            ("noatime,relatime", "relatime"),
        ] {
            assert!(changes_nothing(Some(mounted), option), "{mounted} and {option}");
        }
        for (mounted, option) in [("", "noatime"), ("noatime", "relatime"), ("commit=5", "commit=6")] {
            assert!(!changes_nothing(Some(mounted), option), "{mounted} and {option}");
        }
        assert!(!changes_nothing(None, "relatime"), "an older daemon does not tell");
    }

    #[test]
    fn what_a_remount_leaves_is_told() {
        let left = |text: &str| left_by_remount(&[text.to_owned()]);
        assert_eq!(left("remount,ro,memory=1GiB,noatime"), ["memory=1GiB", "noatime"]);
        assert_eq!(left("remount,compress,compress=lz4"), ["compress", "compress=lz4"]);
        assert_eq!(left("remount,discard,log=/x"), ["discard", "log=/x"]);
        assert!(left("remount,rw,nosuid,x-a=b,user_id=0,defaults").is_empty());
    }
}
