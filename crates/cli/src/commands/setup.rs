//! `syncline setup`: adds to 'cargo install' the manual, completions and the helpers of mount(8).

use super::{completions, manual};
use crate::failure::{Failure, Outcome};
use crate::printed::several;
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

/// Where the pages of the manual go, below the prefix.
const PAGES: &str = "share/man/man1";

/// Arguments of `setup`.
#[derive(clap::Args)]
pub struct Args {
    /// Where the program, its manual and completions go
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Where the helpers of mount(8) go, which looks for them in /sbin only
    #[arg(long, value_name = "DIR", default_value = "/sbin")]
    helpers: PathBuf,
    /// Remove the files of an earlier setup
    #[arg(long)]
    remove: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    let (prefix, helpers) = (std::path::absolute(&args.prefix)?, std::path::absolute(&args.helpers)?);
    let program = prefix.join("bin/syncline");
    let links = HELPERS.map(|name| helpers.join(name));
    let texts = texts(&prefix);
    let former = former_pages(&prefix.join(PAGES), &texts);
    let files = || texts.iter().map(|(path, _)| path).chain([&program]);
    let is_own = |link: &Path| fs::read_link(link).is_ok_and(|target| target == program);
    if args.remove {
        // A setup that was interrupted leaves the second name.
        let names = |path: &PathBuf| [path.clone(), beside(path)];
        let own = files().flat_map(names).filter(|file| is_of_syncline(file));
        let own = own.chain(links.iter().flat_map(names).filter(|link| is_own(link))).chain(former);
        let own: Vec<PathBuf> = own.collect();
        remove(&own)?;
        match own.len() {
            0 => say!("nothing of Syncline is below {} and {}", prefix.display(), helpers.display()),
            files => say!("removed {}", several(files as u64, "file", "files")),
        }
        return Ok(ExitCode::SUCCESS);
    }
    // Nothing is written over the files of a package or of another installation.
    let foreign = files().find(|file| file.symlink_metadata().is_ok() && !is_of_syncline(file));
    let foreign = foreign.or(links.iter().find(|link| link.symlink_metadata().is_ok() && !is_own(link)));
    if let Some(foreign) = foreign {
        let text = format!("{} belongs to another installation", foreign.display());
        return Err(Failure::new(text)
            .next("remove that (a package has all of this already), or choose --prefix or --helpers"));
    }
    // The helpers first: their folder is the one that refuses ordinary users.
    for link in &links {
        in_place_of(link, |new| symlink(&program, new))?;
    }
    if fs::canonicalize("/proc/self/exe")? != program {
        put(&program, &fs::read("/proc/self/exe")?, 0o755)?;
    }
    for (path, text) in &texts {
        put(path, text, 0o644)?;
    }
    remove(&former)?;
    say!(
        "installed {}, its manual and completions, and helpers of mount(8) in {}",
        program.display(),
        helpers.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// True for a file that a setup wrote, of this version or another: the program, a page of the manual
/// and a completion all have the program's name in them.
fn is_of_syncline(file: &Path) -> bool {
    const NAME: &[u8] = b"syncline";
    // Reading a FIFO would wait for its other end.
    file.is_file()
        && fs::read(file).is_ok_and(|contents| contents.windows(NAME.len()).any(|some| some == NAME))
}

/// The pages of commands that an earlier version had.
fn former_pages(folder: &Path, texts: &[(PathBuf, Vec<u8>)]) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_page = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("syncline-") && name.ends_with(".1"))
            && fs::read(path).is_ok_and(|text| text.starts_with(manual::MADE.as_bytes()))
    };
    found.filter(|path| texts.iter().all(|(current, _)| current != path) && is_page(path)).collect()
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
    let pages = pages.map(|(name, text)| (prefix.join(PAGES).join(name), text.into_bytes()));
    pages.chain(shells.map(|(shell, place)| (share.join(place), completions::script(shell)))).collect()
}

fn put(path: &Path, contents: &[u8], mode: u32) -> Result<(), Failure> {
    in_place_of(path, |new| {
        let mut file = File::create_new(new)?;
        file.write_all(contents)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    })
}

fn remove(paths: &[PathBuf]) -> Result<(), Failure> {
    paths.iter().try_for_each(|path| fs::remove_file(path).map_err(|error| refused(error, path)))
}

/// The name of a file while it is written.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Has `make` write a new file, and gives it the name `path`.
fn in_place_of(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Failure> {
    let new = beside(path);
    let written = make_folders(path.parent().unwrap_or(Path::new("/")))
        .and_then(|()| fs::remove_file(&new).or_else(unless_missing))
        .and_then(|()| make(&new))
        .and_then(|()| fs::rename(&new, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&new);
        refused(error, path)
    })
}

/// Makes the folder and those above it, for everybody to read, whatever the umask.
fn make_folders(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    folder.parent().map_or(Ok(()), make_folders)?;
    fs::create_dir(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o755))
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
