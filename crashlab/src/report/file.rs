//! Files of reports.

use super::{Report, html, json, junit, sarif};
use crate::Error;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

type Render = fn(&Report<'_>) -> String;

/// Formats, by the ending of a file.
const FORMATS: [(&str, Render); 4] =
    [("json", json::as_json), ("xml", junit::as_junit), ("sarif", sarif::as_sarif), ("html", html::as_html)];

/// A file for a report.
#[derive(Clone)]
pub struct ReportFile {
    path: PathBuf,
    render: Render,
}

impl ReportFile {
    /// Of the format that the path's ending names.
    pub fn new(path: OsString) -> Result<Self, String> {
        let path = PathBuf::from(path);
        let ending = path.extension().unwrap_or_default();
        match FORMATS.iter().find(|(name, _)| ending == *name) {
            Some((_, render)) => Ok(Self { render: *render, path }),
            None => Err("its ending says the format: .json, .xml (JUnit), .sarif or .html".to_owned()),
        }
    }

    /// Fails if no file can be made there, before an exploration has taken its time.
    pub fn try_out(&self) -> Result<(), Error> {
        let made = tempfile::tempfile_in(self.folder());
        made.map(drop).map_err(|error| Error::Usage(format!("{}: {error}", self.path.display())))
    }

    fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        }
    }

    /// Writes the report. A power cut leaves the old file or the whole new one.
    pub fn write(&self, report: &Report<'_>) -> Result<(), Error> {
        let write = || -> io::Result<()> {
            let folder = self.folder();
            // As any new file: less what the umask takes.
            let permissions = Permissions::from_mode(0o666);
            let mut file = tempfile::Builder::new().permissions(permissions).tempfile_in(folder)?;
            file.write_all((self.render)(report).as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            File::open(folder)?.sync_all()
        };
        write().map_err(|error| Error::file(&self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_is_the_format() {
        for name in ["a.json", "dir/b.xml", "c.d.sarif", "e.html"] {
            assert!(ReportFile::new(name.into()).is_ok(), "{name}");
        }
        for name in ["", "-", "json", "a.txt", ".xml", "a.json.gz"] {
            let refused = ReportFile::new(name.into()).err();
            let all_named = refused
                .is_some_and(|why| [".json", ".xml", ".sarif", ".html"].iter().all(|one| why.contains(one)));
            assert!(all_named, "{name}");
        }
    }
}
