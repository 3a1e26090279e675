//! `syncline setup`: adds to 'cargo install' the manual, completions and the helpers of mount(8).

use super::{completions, manual};
use crate::failure::{Failure, Outcome};
use clap_complete::Shell;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The names under which mount(8), umount(8), fsck(8) and mkfs(8) call the program.
const HELPERS: [&str; 8] = [
    "mount.syncline",
    "mount.fuse.syncline",
    "mount.fuseblk.syncline",
    "umount.fuse.syncline",
    "umount.fuseblk.syncline",
    "fsck.syncline",
    "fsck.fuse.syncline",
    "mkfs.syncline",
];

/// Arguments of `setup`.
#[derive(clap::Args)]
pub struct Args {
    /// Where the program, its manual and completions go
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Where the helpers of mount(8) go, which looks for them in /sbin only
    #[arg(long, value_name = "DIR", default_value = "/sbin")]
    helpers: PathBuf,
    /// Remove all of it
    #[arg(long)]
    remove: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let prefix = std::path::absolute(&args.prefix)?;
    let program = prefix.join("bin/syncline");
    let links = HELPERS.map(|name| args.helpers.join(name));
    let texts = texts(&prefix);
    if args.remove {
        let own = |link: &&PathBuf| fs::read_link(link).is_ok_and(|target| target == program);
        let paths = texts.iter().map(|(path, _)| path).chain([&program]).chain(links.iter().filter(own));
        return paths.into_iter().try_for_each(remove).map(|()| ExitCode::SUCCESS);
    }
    // Nothing is written beside the links of a package.
    links.iter().try_for_each(|link| refuse_foreign(link, &program))?;
    if fs::canonicalize("/proc/self/exe")? != program {
        put(&program, &fs::read("/proc/self/exe")?, 0o755)?;
    }
    for (path, text) in &texts {
        put(path, text, 0o644)?;
    }
    for link in &links {
        in_place_of(link, |new| symlink(&program, new))?;
    }
    say!("{} and its manual, completions and helpers in {}", program.display(), args.helpers.display());
    Ok(ExitCode::SUCCESS)
}

/// The manual and completions, each with its place.
fn texts(prefix: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let share = prefix.join("share");
    let shells = [
        (Shell::Bash, "bash-completion/completions/syncline"),
        (Shell::Zsh, "zsh/site-functions/_syncline"),
        (Shell::Fish, "fish/vendor_completions.d/syncline.fish"),
    ];
    let pages = manual::pages().into_iter();
    let pages = pages.map(|(name, text)| (share.join("man/man1").join(name), text.into_bytes()));
    pages.chain(shells.map(|(shell, place)| (share.join(place), completions::script(shell)))).collect()
}

fn refuse_foreign(link: &Path, program: &Path) -> Result<(), Failure> {
    match fs::symlink_metadata(link) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(refused(error, link)),
        Ok(_) if fs::read_link(link).is_ok_and(|target| target == program) => Ok(()),
        Ok(_) => Err(Failure::new(format!("{} belongs to another installation", link.display()))
            .next("remove that (a package has all of this already), or choose --helpers")),
    }
}

fn put(path: &Path, contents: &[u8], mode: u32) -> Result<(), Failure> {
    in_place_of(path, |new| {
        let mut file = File::create_new(new)?;
        file.write_all(contents)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    })
}

/// Has `make` write a new file, and gives it the name `path`.
fn in_place_of(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Failure> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let written = fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))
        .and_then(|()| fs::remove_file(&new).or_else(unless_missing))
        .and_then(|()| make(&new))
        .and_then(|()| fs::rename(&new, path));
    written.map_err(|error| refused(error, path))
}

fn remove(path: &PathBuf) -> Result<(), Failure> {
    fs::remove_file(path).or_else(unless_missing).map_err(|error| refused(error, path))
}

fn unless_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn refused(error: io::Error, path: &Path) -> Failure {
    let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
    let failure = Failure::from(error).about(path);
    match is_denied {
        true => failure.next("run it as root, or choose --prefix and --helpers"),
        false => failure,
    }
}
