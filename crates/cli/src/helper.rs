//! The program under other names: `mkfs.syncline`, `fsck.syncline`, `mount.syncline`,
//! `mount.fuse.syncline` and `umount.fuse.syncline` take what mkfs(8), fsck(8), mount(8) and
//! umount(8) pass to the helper of a filesystem, and return the exit codes that those expect.
//!
//! The arguments are translated to those of the command that does the work; nothing else knows of
//! these names.

use crate::commands::check::WRONG_USAGE;
use crate::failure::{Cause, Failure};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// The name under which the program was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// `syncline`, or anything else.
    Program,
    /// `mkfs.syncline`
    Mkfs,
    /// `fsck.syncline`, `fsck.fuse.syncline`
    Fsck,
    /// `mount.syncline`, `mount.fuse.syncline`, `mount.fuseblk.syncline`
    Mount,
    /// `umount.syncline`, `umount.fuse.syncline`, `umount.fuseblk.syncline`
    Umount,
}

/// The action that the arguments ask for.
#[derive(PartialEq, Eq, Debug)]
pub enum Asked {
    /// Run the program with these arguments.
    Run(Vec<OsString>),
    /// Change the flags of a mount: the directory, and the options in their order.
    Remount(OsString, Vec<String>),
    /// Unmount a directory and wait for its daemon.
    Unmount(OsString),
    /// Have umount(8) do this without a helper.
    KernelUnmount(Vec<OsString>),
    /// Tell that an image is not checked, if it is one.
    Unchecked(OsString),
    /// Do nothing and succeed.
    Nothing,
}

/// Exit codes of mount(8).
const MOUNT_USAGE: u8 = 1;
const MOUNT_FAILED: u8 = 32;

impl Role {
    /// The role that goes with the name in `argv[0]`.
    pub fn of(program: &OsStr) -> Self {
        match Path::new(program).file_name().and_then(OsStr::to_str) {
            Some("mkfs.syncline") => Self::Mkfs,
            Some("fsck.syncline" | "fsck.fuse.syncline") => Self::Fsck,
            Some("mount.syncline" | "mount.fuse.syncline" | "mount.fuseblk.syncline") => Self::Mount,
            Some("umount.syncline" | "umount.fuse.syncline" | "umount.fuseblk.syncline") => Self::Umount,
            _ => Self::Program,
        }
    }

    /// Translates the arguments of the role. The first is the program's name.
    pub fn arguments(self, arguments: Vec<OsString>) -> Result<Asked, Failure> {
        let rest: Vec<_> = arguments.into_iter().skip(1).collect();
        match self {
            Self::Program if is_of_mount_fuse(&rest) => mount(rest),
            Self::Program => Ok(Asked::Run(rest)),
            Self::Mkfs => Ok(Asked::Run(mkfs(rest))),
            Self::Fsck => fsck(rest),
            Self::Mount => mount(rest),
            Self::Umount => umount(rest),
        }
    }

    /// Translates the program's exit code to the one that the role's caller expects.
    pub fn exit_code(self, code: u8) -> ExitCode {
        const USAGE: u8 = Cause::Usage as u8;
        const PERMISSION: u8 = Cause::Permission as u8;
        ExitCode::from(match (self, code) {
            (_, 0) => 0,
            (Self::Mount | Self::Umount, USAGE | PERMISSION) => MOUNT_USAGE,
            (Self::Mount | Self::Umount, _) => MOUNT_FAILED,
            (Self::Mkfs, _) => 1,
            (Self::Fsck, USAGE) => WRONG_USAGE,
            (Self::Program | Self::Fsck, code) => code,
        })
    }
}

/// True for `syncline IMAGE DIRECTORY -o OPTIONS`. That is how mount.fuse(8) calls the program for the
/// type `fuse.syncline` where the helper of that name is missing.
fn is_of_mount_fuse(arguments: &[OsString]) -> bool {
    let [image, directory, flag, _] = arguments else { return false };
    let is_word = |word: &OsString| word.to_string_lossy().starts_with('-');
    let is_command = || crate::definition().find_subcommand(image).is_some();
    flag == "-o" && !is_word(image) && Path::new(directory).is_absolute() && !is_command()
}

/// `mkfs.syncline [-v] [-f] [OPTIONS] DEVICE`, or `-V` for the version.
fn mkfs(arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.iter().any(|argument| argument == "-V") {
        return vec!["--version".into()];
    }
    let wanted = arguments.into_iter().filter(|argument| argument != "-v");
    std::iter::once("mkfs".into()).chain(wanted).collect()
}

/// `fsck.syncline [-a|-p|-y|-n] [-f] [-l] [-C[FD]] DEVICE`, with one-letter flags combined or
/// separate, or `-V` for the version. Mounting restores consistency after any crash, so nothing is
/// left to do for a check at boot (-a, -p, without -f). With -f that mends what loses nothing.
fn fsck(arguments: Vec<OsString>) -> Result<Asked, Failure> {
    let (mut boot, mut repair, mut force, mut only_look) = (false, false, false, false);
    let mut rest: Vec<OsString> = Vec::new();
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy().into_owned();
        let letters = text
            .strip_prefix('-')
            .filter(|letters| letters.chars().all(|flag| "apynfvVTMrRl".contains(flag)));
        if let Some(letters) = letters.filter(|letters| !letters.is_empty()) {
            if letters.contains('V') {
                return Ok(Asked::Run(vec!["--version".into()]));
            }
            boot |= letters.contains(['a', 'p']);
            only_look |= letters.contains('n');
            repair |= letters.contains('y');
            force |= letters.contains('f');
        } else if text == "-C" {
            // Its descriptor may be a separate word.
            let is_number = |next: &OsString| next.to_str().is_some_and(|next| next.parse::<u32>().is_ok());
            arguments.next_if(is_number);
        } else if !text.starts_with("-C") {
            rest.push(argument);
        }
    }
    if u8::from(boot) + u8::from(repair) + u8::from(only_look) > 1 {
        return Err(Failure::usage("only one of -a or -p, -n and -y"));
    }
    if let ([image], true, false) = (&rest[..], boot, force) {
        return Ok(Asked::Unchecked(image.clone()));
    }
    let mut translated: Vec<OsString> = vec!["check".into()];
    translated.extend(boot.then(|| "-p".into()));
    translated.extend(repair.then(|| "--repair".into()));
    translated.extend(rest);
    Ok(Asked::Run(translated))
}

/// `mount.syncline IMAGE DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`
fn mount(arguments: Vec<OsString>) -> Result<Asked, Failure> {
    let mut places = Vec::new();
    let mut options: Vec<String> = Vec::new();
    let (mut fake, mut sloppy) = (false, false);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy().into_owned();
        match text.as_str() {
            "-o" => {
                let list = arguments.next().ok_or(Failure::usage("-o needs options"))?;
                options.extend(list.to_string_lossy().split(',').map(str::to_owned));
            }
            "-t" | "-N" => drop(arguments.next()),
            _ if text.len() > 1 && text.starts_with('-') && !text.starts_with("--") => {
                for flag in text.chars().skip(1) {
                    match flag {
                        'f' => fake = true,
                        's' => sloppy = true,
                        'n' | 'v' => {}
                        'r' => options.push("ro".into()),
                        'w' => options.push("rw".into()),
                        _ => return Err(Failure::usage(format!("unknown option -{flag}"))),
                    }
                }
            }
            _ => places.push(argument),
        }
    }
    let Ok([image, directory]) = <[OsString; 2]>::try_from(places) else {
        return Err(Failure::usage("mount.syncline IMAGE DIRECTORY [-sfnv] [-o OPTIONS]"));
    };
    if fake {
        return Ok(Asked::Nothing);
    }
    if options.iter().any(|option| option == "remount") {
        return Ok(Asked::Remount(directory, options));
    }
    // As mount(8) does for the kernel's filesystems: the disk may be absent today.
    if options.iter().any(|option| option == "nofail") && is_missing(Path::new(&image)) {
        return Ok(Asked::Nothing);
    }
    if sloppy {
        options.push("sloppy".into());
    }
    let mut translated: Vec<OsString> = vec!["mount".into(), image, directory];
    if !options.is_empty() {
        translated.extend(["-o".into(), options.join(",").into()]);
    }
    Ok(Asked::Run(translated))
}

/// `umount.fuse.syncline DIRECTORY [-nv] [-flr] [-N NAMESPACE] [-t TYPE]`. A caller who unmounts
/// lazily, by force, or in another namespace does not want to wait for a daemon.
fn umount(arguments: Vec<OsString>) -> Result<Asked, Failure> {
    let mut directory = None;
    let mut given = arguments.iter();
    while let Some(argument) = given.next() {
        let text = argument.to_string_lossy();
        match text.as_ref() {
            "-t" => drop(given.next()),
            "-N" => return Ok(Asked::KernelUnmount(arguments)),
            _ if text.starts_with('-') && text.contains(['f', 'l', 'r']) => {
                return Ok(Asked::KernelUnmount(arguments));
            }
            _ if text.starts_with('-') => {}
            _ if directory.is_none() => directory = Some(argument.clone()),
            _ => directory = None,
        }
    }
    let usage = || Failure::usage("umount.fuse.syncline DIRECTORY [-nvflr]");
    directory.map(Asked::Unmount).ok_or_else(usage)
}

fn is_missing(image: &Path) -> bool {
    !syncline_image::is_remote(image)
        && image.metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Asked {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        Role::of(&words[0]).arguments(words).unwrap()
    }

    fn run(line: &str) -> Asked {
        Asked::Run(line.split(' ').map(Into::into).collect())
    }

    #[test]
    fn names_are_roles_wherever_they_lie() {
        assert_eq!(Role::of("/sbin/mount.syncline".as_ref()), Role::Mount);
        assert_eq!(Role::of("mount.fuse.syncline".as_ref()), Role::Mount);
        assert_eq!(Role::of("/sbin/umount.fuse.syncline".as_ref()), Role::Umount);
        assert_eq!(Role::of("/sbin/umount.fuseblk.syncline".as_ref()), Role::Umount);
        assert_eq!(Role::of("fsck.syncline".as_ref()), Role::Fsck);
        assert_eq!(Role::of("/usr/sbin/fsck.fuse.syncline".as_ref()), Role::Fsck);
        assert_eq!(Role::of("/usr/bin/syncline".as_ref()), Role::Program);
        assert_eq!(asked("./syncline info image"), run("info image"));
    }

    #[test]
    fn mount_passes_its_options_on() {
        assert_eq!(asked("mount.syncline a b"), run("mount a b"));
        assert_eq!(asked("mount.syncline a b -n -o rw,noatime"), run("mount a b -o rw,noatime"));
        assert_eq!(asked("mount.fuse.syncline a b -sv -o nodev"), run("mount a b -o nodev,sloppy"));
        assert_eq!(asked("mount.syncline a b -t fuse.syncline -r"), run("mount a b -o ro"));
        assert_eq!(asked("mount.syncline -f a b"), Asked::Nothing);
        assert_eq!(asked("mount.syncline /missing b -o rw,nofail"), Asked::Nothing);
        assert_eq!(asked("mount.syncline /dev/null b -o nofail"), run("mount /dev/null b -o nofail"));
        let options = vec!["remount".to_owned(), "ro".to_owned()];
        assert_eq!(asked("mount.syncline a b -o remount,ro"), Asked::Remount("b".into(), options));
        for wrong in
            ["mount.syncline a", "mount.syncline a b c", "mount.syncline a b -o", "mount.syncline a b -z"]
        {
            let words: Vec<OsString> = wrong.split(' ').map(Into::into).collect();
            assert!(Role::Mount.arguments(words).is_err(), "{wrong}");
        }
    }

    #[test]
    fn mount_fuse_finds_the_program_without_its_helper() {
        assert_eq!(asked("syncline a.img /b -o rw,nosuid"), run("mount a.img /b -o rw,nosuid"));
        assert_eq!(asked("syncline mount /b -o rw"), run("mount /b -o rw"));
        assert_eq!(asked("syncline a.img b -o rw"), run("a.img b -o rw"));
    }

    #[test]
    fn umount_waits_where_it_is_not_told_otherwise() {
        assert_eq!(asked("umount.fuse.syncline /mnt"), Asked::Unmount("/mnt".into()));
        assert_eq!(asked("umount.syncline /mnt -n -v -t fuse.syncline"), Asked::Unmount("/mnt".into()));
        for line in ["/mnt -l", "/mnt -nf", "-r /mnt", "/mnt -N /proc/1/ns/mnt"] {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(asked(&format!("umount.fuse.syncline {line}")), Asked::KernelUnmount(words));
        }
        assert!(Role::Umount.arguments(vec!["umount.syncline".into(), "-n".into()]).is_err());
    }

    #[test]
    fn fsck_checks_or_mends() {
        assert_eq!(asked("fsck.syncline -a image"), Asked::Unchecked("image".into()));
        assert_eq!(asked("fsck.syncline -p -l -C0 image"), Asked::Unchecked("image".into()));
        assert_eq!(asked("fsck.syncline -p"), run("check -p"));
        assert_eq!(asked("fsck.syncline image"), run("check image"));
        assert_eq!(asked("fsck.syncline -n -C0 image"), run("check image"));
        assert_eq!(asked("fsck.syncline -p -f image"), run("check -p image"));
        assert_eq!(asked("fsck.syncline -y image"), run("check --repair image"));
        assert_eq!(asked("fsck.syncline -fy image"), run("check --repair image"));
        assert_eq!(asked("fsck.syncline -fp -C 0 image"), run("check -p image"));
        assert_eq!(asked("fsck.syncline -nf image --json"), run("check image --json"));
        assert_eq!(asked("fsck.syncline -fx image"), run("check -fx image"));
        assert!(Role::Fsck.arguments(["fsck.syncline", "-pn", "image"].map(Into::into).into()).is_err());
        assert_eq!(asked("mkfs.syncline -v --force image"), run("mkfs --force image"));
        assert_eq!(asked("mkfs.syncline -V"), run("--version"));
        assert_eq!(asked("fsck.syncline -V"), run("--version"));
    }

    #[test]
    fn exit_codes_are_those_of_the_caller() {
        let code = |role: Role, code| format!("{:?}", role.exit_code(code));
        let is = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(Role::Mount, 0), is(0));
        assert_eq!(code(Role::Mount, Cause::Usage as u8), is(1));
        assert_eq!(code(Role::Mount, Cause::NotAnImage as u8), is(32));
        assert_eq!(code(Role::Mkfs, Cause::NoSpace as u8), is(1));
        assert_eq!(code(Role::Fsck, 4), is(4));
        assert_eq!(code(Role::Program, 5), is(5));
    }
}
