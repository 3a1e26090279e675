//! Settings that are replaced as a whole: a reader finds the old ones or the new, also after any crash.
//!
//!     cargo run --example config config.img colour blue

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use syncline::{Error, Filesystem, FormatOptions, ImageOptions};

const SETTINGS: &str = "/settings";

/// The settings, one `name = value` a line. None yet is none set.
pub fn load(fs: &Filesystem) -> io::Result<BTreeMap<String, String>> {
    let text = match fs.read_to_string(SETTINGS) {
        Err(error) if error.is_not_found() => String::new(),
        text => text?,
    };
    let pairs = text.lines().filter_map(|line| line.split_once(" = "));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Replaces the settings. The rename alone makes it old or new; the sync makes it new for good.
pub fn store(fs: &Filesystem, settings: &BTreeMap<String, String>) -> Result<(), Error> {
    let text: String = settings.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
    let file = fs.create_file("/settings.new")?;
    file.write_all_at(text.as_bytes(), 0)?;
    fs.rename("/settings.new", SETTINGS)?;
    file.sync_all()
}

/// Changes one setting and returns all.
pub fn run(image: &Path, name: &str, value: &str) -> io::Result<BTreeMap<String, String>> {
    let fs = Filesystem::open_or_create(image, 32 << 20, &FormatOptions::default(), ImageOptions::default())?;
    let mut settings = load(&fs)?;
    settings.insert(name.to_owned(), value.to_owned());
    store(&fs, &settings)?;
    fs.close()?;
    Ok(settings)
}

#[allow(dead_code, reason = "the tests include this file")]
fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, name, value] = &arguments[..] else {
        return Err(io::Error::other("usage: config IMAGE NAME VALUE"));
    };
    for (name, value) in run(Path::new(image), name, value)? {
        println!("{name} = {value}");
    }
    Ok(())
}
