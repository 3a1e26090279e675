//! The README's lines, on an image that lies elsewhere.

use super::nbd::{Server, no_exports};
use crate::skip_if;
use crate::support::{Place, program, run};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Pastes the lines as they stand, without the lines that build, and with another name for the
/// image. The size remains where the image has to be made.
pub fn paste(image: &Path, size_too: bool, place: &Place) {
    let readme = include_str!("../../README.md");
    let image = image.to_str().unwrap();
    let (made, named) = ("disk.img --size 1GiB", "disk.img");
    assert!(readme.contains(made), "the README makes an image");
    let readme = if size_too { readme.to_owned() } else { readme.replace(made, named) };
    let blocks = readme.split("```").skip(1).step_by(2);
    let lines =
        blocks.flat_map(str::lines).filter(|line| line.starts_with("syncline ") || is_by_others(line));
    let script = lines.map(|line| line.replace(named, &format!("'{image}'")) + "\n").collect::<String>();
    assert!(script.contains("syncline mount") && script.contains("syncline check"), "{script}");

    let folder = Path::new(program().get_program()).parent().unwrap().to_owned();
    let mut path = folder.into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin")));
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &script]).current_dir(place.directory("tour")).env("PATH", path);
    let said = run(shell).ok().out;
    assert!(said.contains("clean"), "{said}");
}

fn is_by_others(line: &str) -> bool {
    ["mkdir ", "cp "].iter().any(|command| line.starts_with(command))
}

#[test]
fn the_readme_works_on_an_export() {
    skip_if!(no_exports());
    let place = Place::new();
    let server = Server::new(&place);
    paste(&server.image(), false, &place);
}
