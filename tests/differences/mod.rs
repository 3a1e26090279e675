//! Some 250 groups of system calls, made on a mount of Syncline and on ext4, as root and as an
//! ordinary user. The results must be the same, except for the differences that docs/DIFFERENCES.md
//! lists with their reasons.

use crate::skip_if;
use crate::support::{Loop, Mount, Place, no_fuse, not_root, run, tool};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGE: &str = include_str!("../../docs/DIFFERENCES.md");
/// Differences that exist only because the kernel does not ask when a file is opened, unless told
/// to.
const CHECKED_OPENS: [&str; 2] = ["immutable_files_are_opened", "append_only_files_are_opened"];
/// The results in each case, by its name, of root's run and of the user's.
type Told = BTreeMap<String, Vec<String>>;

/// The program that makes the calls, compiled; `None` if there is no compiler.
fn calls(place: &Place) -> Option<PathBuf> {
    let binary = place.path().join("calls");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/differences/calls");
    let mut files: Vec<PathBuf> = fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension() == Some(OsStr::new("c")));
    files.sort();
    tool("cc", &[OsStr::new("--version")])?;
    let mut cc = Command::new("cc");
    // Many of the calls are wrong on purpose, so warnings are off.
    cc.args(["-O1", "-w", "-o"]).arg(&binary).args(files);
    run(cc).ok();
    Some(binary)
}

/// An ext4 on a loop device; unmounted when dropped.
struct Ext4 {
    path: PathBuf,
    _device: Loop,
}

impl Ext4 {
    fn make(image: &Path) -> Option<()> {
        File::create(image).unwrap().set_len(512 << 20).unwrap();
        tool("mkfs.ext4", &[OsStr::new("-q"), OsStr::new("-F"), image.as_ref()]).map(drop)
    }

    fn mount(image: &Path, path: &Path) -> Option<Self> {
        let device = Loop::new(image)?;
        tool("mount", &[OsStr::new("-t"), OsStr::new("ext4"), device.device.as_ref(), path.as_ref()])?;
        Some(Self { path: path.to_owned(), _device: device })
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        tool("umount", &[self.path.as_ref()]);
    }
}

/// Makes the calls below `directory`: all of them, or the calls of some cases.
fn told(calls: &Path, directory: &Path, cases: &[&str]) -> Told {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(calls);
    command.arg(directory).args(cases);
    let mut told = Told::new();
    for line in run(command).ok().out.lines() {
        let (case, _) = line.split_once(": ").unwrap_or_else(|| panic!("not a line of a case: {line}"));
        let name = case.rsplit(' ').next().expect("there is a last word");
        told.entry(name.to_owned()).or_default().push(line.to_owned());
    }
    told
}

/// The ways to shut down. Each has its own filesystem, which shows afterwards the files that
/// survived.
const SHUT_DOWNS: [&str; 4] = ["shut-down-0", "shut-down-1", "shut-down-2", "shut-down-cached"];

/// Shuts down a filesystem that `mount` mounts, and mounts it again.
fn told_alone<M>(calls: &Path, directory: &Path, way: &str, mount: impl Fn() -> M, told: &mut Told) {
    for (word, name) in [(way, format!("{way}-answers")), ("survived", format!("{way}-leaves"))] {
        let mounted = mount();
        let mut command = Command::new(calls);
        command.arg(directory).arg(format!("--{word}"));
        let lines = run(command).ok().out.lines().map(str::to_owned).collect();
        told.insert(name.replace('-', "_"), lines);
        drop(mounted);
    }
}

/// The cases in the first column of the page's tables.
fn named() -> BTreeSet<String> {
    let cells = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    cells.filter_map(|rest| rest.split_once('`')).map(|(name, _)| name.to_owned()).collect()
}

/// Differences that show only while the kernel keeps something in memory, which it need not.
const THE_KERNEL_DECIDES: [&str; 1] = ["handles_outlive_names"];

/// True on the kernel version that the page describes.
fn is_the_pages_kernel() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version = release.split('.').take(2).collect::<Vec<_>>().join(".");
    PAGE.contains(&format!("Linux {version}."))
}

/// The differences between two results.
fn difference(ext4: &[String], ours: &[String]) -> String {
    let only = |these: &[String], those: &[String], mark: &str| {
        let lines = these.iter().filter(|line| !those.contains(line));
        lines.map(|line| format!("    {mark}: {line}\n")).collect::<String>()
    };
    only(ext4, ours, "ext4") + &only(ours, ext4, "here")
}

/// The differing cases, with their differences.
fn differing(ext4: &Told, ours: &Told) -> BTreeMap<String, String> {
    let none = Vec::new();
    let cases: BTreeSet<&String> = ext4.keys().chain(ours.keys()).collect();
    let sides = cases
        .into_iter()
        .map(|case| (case, ext4.get(case).unwrap_or(&none), ours.get(case).unwrap_or(&none)));
    let differing = sides.filter(|(_, ext4, ours)| ext4 != ours);
    differing.map(|(case, ext4, ours)| (case.clone(), difference(ext4, ours))).collect()
}

#[test]
fn calls_answer_as_on_ext4_or_the_page_says_why_not() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let place = Place::with_image("512MiB");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let Some(calls) = calls(&place) else {
        eprintln!("skipped: there is no compiler for C");
        return;
    };
    let (image, on_ext4, on_syncline) =
        (place.path().join("ext4"), place.directory("on ext4"), place.directory("on syncline"));
    let Some(ext4) = Ext4::make(&image).and_then(|()| Ext4::mount(&image, &on_ext4)) else {
        eprintln!("skipped: there are no loop devices here, or no ext4");
        return;
    };
    // FITRIM reaches an image file only if asked for, while ext4's always reaches the file below
    // its loop device.
    let mount = Mount::new(&place.image(), &on_syncline, &["-o", "discard=punch"]);
    let (mut theirs, mut ours) = (told(&calls, &on_ext4, &[]), told(&calls, &on_syncline, &[]));
    assert!(theirs.len() >= 200, "{} cases", theirs.len());
    drop(ext4);
    mount.unmount().ok();
    place.check_clean();
    let checked = Mount::new(&place.image(), &on_syncline, &["-o", "direct_io=write"]);
    fs::create_dir(on_syncline.join("checked")).unwrap();
    for (case, lines) in told(&calls, &on_syncline.join("checked"), &CHECKED_OPENS) {
        assert_eq!(lines, theirs[&case], "where the kernel asks about openings, it is as on ext4");
    }
    checked.unmount().ok();
    for way in SHUT_DOWNS {
        Ext4::make(&image).expect("it was possible before");
        let ext4 = || Ext4::mount(&image, &on_ext4).expect("it was possible before");
        told_alone(&calls, &on_ext4, way, ext4, &mut theirs);
        let place = Place::with_image("64MiB");
        told_alone(&calls, &on_syncline, way, || Mount::new(&place.image(), &on_syncline, &[]), &mut ours);
        place.check_clean();
    }
    let (differing, named) = (differing(&theirs, &ours), named());
    let unnamed = differing.iter().filter(|(case, _)| !named.contains(*case));
    let unnamed: String = unnamed.map(|(case, difference)| format!("{case}:\n{difference}")).collect();
    assert!(
        unnamed.is_empty(),
        "docs/DIFFERENCES.md does not name these differences; mend them, or name them with the reason:\n{unnamed}"
    );
    let is_none =
        |case: &&String| !differing.contains_key(*case) && !THE_KERNEL_DECIDES.contains(&case.as_str());
    let stale: Vec<&String> = named.iter().filter(is_none).collect();
    assert!(
        stale.is_empty() || !is_the_pages_kernel(),
        "docs/DIFFERENCES.md names what is no difference: {stale:?}"
    );
}
