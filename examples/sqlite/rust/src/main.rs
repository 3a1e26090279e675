//! rusqlite on a database in an image: sqlite-in-an-image EXTENSION IMAGE

use rusqlite::{Connection, LoadExtensionGuard, Result};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (extension, image) = (arguments.next().expect("EXTENSION"), arguments.next().expect("IMAGE"));

    // The extension stays loaded for the whole process.
    let loader = Connection::open_in_memory()?;
    // SAFETY: it is our extension, and nobody loads one by SQL.
    unsafe {
        let _guard = LoadExtensionGuard::new(&loader)?;
        loader.load_extension(extension, None::<&str>)?;
    }

    let name = format!("file:app.db?vfs=syncline&image={image}&create=64MiB");
    let mut db = Connection::open(&name).inspect_err(|_| {
        let why: Result<String> = loader.query_row("select syncline_last_error()", [], |row| row.get(0));
        eprintln!("{}", why.unwrap_or_default());
    })?;
    let transaction = db.transaction()?;
    transaction.execute("create table if not exists visit(at text, who text)", [])?;
    transaction.execute("insert into visit values(datetime(), 'Rust')", [])?;
    transaction.commit()?; // one flush
    let visits: String = db.query_row("select count(*) || ' visits' from visit", [], |row| row.get(0))?;
    println!("{visits}");
    Ok(())
}
