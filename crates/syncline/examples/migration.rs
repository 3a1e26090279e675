//! A snapshot before a migration: if the migration fails half-way, everything is again as it was.
//!
//!     cargo run --example migration customers.img

use std::io;
use std::path::Path;
use syncline::{Filesystem, FormatOptions, ImageOptions};

const BEFORE: &str = "before-migration";

/// Turns every `NAME.txt` below /customers into `NAME.json`. Refuses a file that is not `name,city`.
pub fn migrate(fs: &Filesystem) -> io::Result<()> {
    let paths: Result<Vec<_>, syncline::Error> =
        fs.walk_dir("/customers")?.map(|entry| Ok(entry?.path())).collect();
    for path in paths?.into_iter().filter(|path| path.extension().is_some_and(|it| it == "txt")) {
        let text = fs.read_to_string(&path)?;
        let (name, city) =
            text.split_once(',').ok_or_else(|| io::Error::other(format!("{path:?}: {text}")))?;
        fs.write(path.with_extension("json"), serde_json::json!({ "name": name, "city": city }).to_string())?;
        fs.remove_file(path)?;
    }
    Ok(fs.sync()?)
}

/// Migrates, or leaves everything as it was; tells which.
pub fn run(image: &Path) -> io::Result<bool> {
    let (format, options) = (FormatOptions::default(), ImageOptions::default());
    let fs = Filesystem::open_or_create(image, 64 << 20, &format, options)?;
    fs.create_dir_all("/customers")?;
    fs.create_snapshot(BEFORE)?;
    let migrated = migrate(&fs);
    if let Err(error) = &migrated {
        println!("taking it back: {error}");
        fs.close()?;
        Filesystem::roll_back(image, BEFORE)?;
    } else {
        fs.close()?;
    }
    let fs = Filesystem::open(image, ImageOptions::default())?;
    fs.delete_snapshot(BEFORE)?;
    fs.close()?;
    Ok(migrated.is_ok())
}

#[allow(dead_code, reason = "the tests include this file")]
fn main() -> io::Result<()> {
    let image = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: migration IMAGE"))?;
    let said = if run(Path::new(&image))? { "migrated" } else { "not migrated, nothing has changed" };
    println!("{said}");
    Ok(())
}
