//! sync(2) and syncfs(2) on root's mounts, in the ways in which programs use them, and a power cut
//! behind each: changes made before the sync are there after the cut, of class *ordered* too.

use crate::skip_if;
use crate::support::{Mount, Place, c_program, missing_of, no_mounts, syncline};
use rustix::fs::syncfs;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use syncline_nbdlab::{FLUSH, FUA, Lab, MULTI_CONN, Spec, TRIM, WRITE_ZEROES};
use syncline_net::Wait;

/// Stores to a mapping, and closes the file.
const STORE: &str = r#"
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <unistd.h>
    int main(int argc, char **argv) {
        int fd = open(argv[argc - 1], O_RDWR | O_CREAT, 0644);
        if (fd < 0 || ftruncate(fd, 65536)) return 1;
        char *page = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED) return 2;
        page[5000] = 'm';
        return 0;
    }
"#;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// sync(1)
    Everything,
    /// `sync -f` of a file
    OfFile,
    /// syncfs(2) of a directory's descriptor, as containerd does
    OfDescriptor,
    /// fsync of some files, sync for the others, and renames behind it, as dpkg does
    OfPackages,
}

fn call(program: &str, arguments: &[&OsStr]) {
    assert!(Command::new(program).args(arguments).status().unwrap().success(), "{program}");
}

impl Way {
    fn sync(self, directory: &Path) {
        match self {
            Self::Everything => call("sync", &[]),
            Self::OfFile => call("sync", &[OsStr::new("-f"), directory.join("small").as_ref()]),
            Self::OfDescriptor => syncfs(File::open(directory).unwrap()).unwrap(),
            Self::OfPackages => {
                File::open(directory.join("large")).unwrap().sync_all().unwrap();
                call("sync", &[]);
                fs::rename(directory.join("small"), directory.join("small.new")).unwrap();
                fs::rename(directory.join("small.new"), directory.join("small")).unwrap();
                call("sync", &[]);
            }
        }
    }
}

fn large() -> Vec<u8> {
    (0..3_000_000u32).map(|at| (at / 7) as u8).collect()
}

fn write(directory: &Path, store: &Path) {
    fs::create_dir_all(directory.join("a/b")).unwrap();
    fs::write(directory.join("a/b/deep"), "deep").unwrap();
    fs::write(directory.join("small"), "small").unwrap();
    fs::write(directory.join("large"), large()).unwrap();
    fs::write(directory.join("old name"), "renamed").unwrap();
    fs::rename(directory.join("old name"), directory.join("new name")).unwrap();
    symlink("small", directory.join("link")).unwrap();
    call(store.to_str().unwrap(), &[directory.join("mapped").as_ref()]);
}

fn require_all(directory: &Path, way: Way) {
    let read = |name: &str| {
        fs::read(directory.join(name)).unwrap_or_else(|error| panic!("{way:?}: {name}: {error}"))
    };
    assert_eq!(read("a/b/deep"), b"deep", "{way:?}");
    assert_eq!(read("small"), b"small", "{way:?}");
    assert!(read("large") == large(), "{way:?}");
    assert_eq!(read("new name"), b"renamed", "{way:?}");
    assert_eq!(read("link"), b"small", "{way:?}");
    let mapped = read("mapped");
    assert_eq!((mapped.len(), mapped[5000]), (65536, b'm'), "{way:?}: the mapping");
}

#[test]
fn what_sync_has_covered_survives_a_power_cut() {
    skip_if!(no_mounts());
    skip_if!(missing_of(&["sync", "cc"]));
    let place = Place::new();
    let store = c_program(&place, STORE);
    let ways = [Way::Everything, Way::OfFile, Way::OfDescriptor, Way::OfPackages];
    std::thread::scope(|scope| {
        for (number, way) in ways.into_iter().enumerate() {
            let (place, store) = (&place, &store);
            // Nothing else makes anything durable meanwhile.
            let class = ["durability=fsync,commit=3600", "durability=ordered:255,commit=3600"][number % 2];
            let transport = ["available", "classic"][number / 2];
            scope.spawn(move || cut_behind(place, store, way, class, transport));
        }
    });
}

fn cut_behind(place: &Place, store: &Path, way: Way, class: &str, transport: &str) {
    let flags = FLUSH | FUA | TRIM | WRITE_ZEROES | MULTI_CONN;
    let lab = Lab::new(1, Spec { size: 256 << 20, flags, blocks: None, structured: true });
    let image = || PathBuf::from(lab.location(Wait::Seconds(20)).to_string());
    syncline([OsStr::new("mkfs"), image().as_os_str()]).ok();
    let directory = place.directory(&format!("{way:?}"));
    let options = format!("fuseblk=always,transport={transport},{class}");
    let mut mount = Mount::new(&image(), &directory, &["-o", &options]);
    assert_eq!(mount.stats()["daemon"]["sync"]["reached"], true);
    write(&directory, store);
    way.sync(&directory);
    mount.kill();
    lab.end_clients();
    lab.crash();
    drop(mount);
    let mount = Mount::new(&image(), &directory, &["-o", "fuseblk=always"]);
    require_all(&directory, way);
    mount.unmount().ok();
    syncline([OsStr::new("check"), image().as_os_str()]).ok();
}
