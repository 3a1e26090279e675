//! Names of files in images. SQLite derives the names of journals from that of the database, and
//! passes them without the URI's parameters. So the full name of a file has that of its image in
//! front: `/var/lib/app.img/app.db`. No file of the host can have such a name.

use crate::failure::{Failure, Result};
use std::path::{Path, PathBuf};

/// Longest name of a database: a name of 255 bytes, without SQLite's `-journal`.
const DATABASE_NAME_BYTES_MAX: usize = 247;

/// The name of an image, from its path: the same for every path that leads to it. Two slashes separate a
/// snapshot's name from that of its image, since no path within an image begins with two.
pub(crate) fn key(image: &str, snapshot: Option<&str>) -> String {
    let path = Path::new(image);
    let canonical = path.canonicalize().or_else(|_| -> std::io::Result<PathBuf> {
        // It may be made yet.
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = folder.canonicalize()?;
        path.file_name().map(|name| folder.join(name)).ok_or(std::io::ErrorKind::InvalidInput.into())
    });
    // A path that is no UTF-8 could not be told from others like it.
    let canonical = canonical.ok().and_then(|path| path.into_os_string().into_string().ok());
    let path = canonical.unwrap_or_else(|| image.to_owned());
    match snapshot {
        Some(snapshot) => format!("{path}//{snapshot}"),
        None => path,
    }
}

/// Refuses a database whose journals would have too long a name.
pub(crate) fn require_room_for_journals(path: &str) -> Result<()> {
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.len() > DATABASE_NAME_BYTES_MAX {
        return Err(Failure::cannot_open(format!(
            "the name of the database has {} bytes: at most {DATABASE_NAME_BYTES_MAX}, so that its journal can be \
             named after it",
            name.len()
        )));
    }
    Ok(())
}

/// The full name of a file in an image.
pub(crate) fn full(key: &str, name: &str) -> String {
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("{key}/{}", parts.join("/"))
}

/// Splits a full name of a file in the image of this name; the file's path begins with a slash.
pub(crate) fn within<'a>(name: &'a str, key: &str) -> Option<&'a str> {
    name.strip_prefix(key).filter(|path| path.starts_with('/') && !path.starts_with("//"))
}

/// Splits a path that leads through a file or a block device as if it were a directory: the image,
/// and the path in it. None for all other paths.
pub(crate) fn through_a_file(name: &str) -> Option<(PathBuf, &str)> {
    const ENOTDIR: i32 = 20;
    // One system call tells most paths apart.
    let error = std::fs::symlink_metadata(name).err()?;
    if error.raw_os_error() != Some(ENOTDIR) {
        return None;
    }
    let slashes = name.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
    for at in slashes {
        let metadata = std::fs::metadata(&name[..at]).ok()?;
        if !metadata.is_dir() {
            return Some((PathBuf::from(&name[..at]), &name[at..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_name_stays_in_its_image() {
        for (name, full_name) in [
            ("app.db", "/i.img/app.db"),
            ("/app.db", "/i.img/app.db"),
            ("//a/./b//c.db", "/i.img/a/b/c.db"),
            ("../../etc/passwd", "/i.img/etc/passwd"),
            ("a/../b.db", "/i.img/b.db"),
        ] {
            assert_eq!(full("/i.img", name), full_name);
        }
        assert_eq!(within("/i.img/a/b.db", "/i.img"), Some("/a/b.db"));
        assert_eq!(within("/i.img2/b.db", "/i.img"), None);
        assert_eq!(within("/i.img//monday/b.db", "/i.img"), None, "a file of a snapshot");
    }

    #[test]
    fn every_path_of_an_image_gives_one_name() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        std::fs::write(folder.join("real.img"), "").unwrap();
        std::os::unix::fs::symlink("real.img", folder.join("link.img")).unwrap();
        let of = |name: &str| key(folder.join(name).to_str().unwrap(), None);
        let real = folder.join("real.img").display().to_string();
        assert_eq!((of("real.img"), of("link.img"), of("./real.img")), (real.clone(), real.clone(), real));
        assert_eq!(of("new.img"), folder.join("new.img").display().to_string());
        let snapshot = key(folder.join("real.img").to_str().unwrap(), Some("monday"));
        assert!(snapshot.ends_with("/real.img//monday"), "{snapshot}");
    }

    #[test]
    fn a_path_through_a_file_names_a_file_in_an_image() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("app.img"), "").unwrap();
        let name = |name: &str| folder.path().join(name).display().to_string();
        let split = name("app.img/a/b.db");
        assert_eq!(through_a_file(&split), Some((folder.path().join("app.img"), "/a/b.db")));
        for other in ["app.img", "none.img", "none/a.db"] {
            assert_eq!(through_a_file(&name(other)), None, "{other}");
        }
    }
}
