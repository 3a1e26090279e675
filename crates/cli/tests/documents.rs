//! Everything that the documents mention exists: links and headings, files that the glossary names,
//! commands and their options.

use crate::support::{program, run};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// A parsed page.
#[derive(Default)]
struct Page {
    /// The targets of its links.
    links: Vec<String>,
    /// The anchors of its headings.
    anchors: BTreeSet<String>,
    /// Lines of its code blocks, except programs and tables in other languages.
    commands: Vec<String>,
    /// Words set as code.
    code: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The folders of the workspace's crates.
fn crate_folders() -> Vec<PathBuf> {
    let below = |folder: &str| fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let folders = below("crates").chain(below("lab")).chain([root().join("crashlab")]);
    // A workspace of its own is none of this one's crates.
    let is_ours = |text: String| !text.lines().any(|line| line == "[workspace]");
    folders.filter(|folder| fs::read_to_string(folder.join("Cargo.toml")).is_ok_and(is_ours)).collect()
}

/// True for a crate that goes to crates.io.
fn is_published(folder: &Path) -> bool {
    !fs::read_to_string(folder.join("Cargo.toml")).unwrap().contains("publish = false")
}

/// All pages of the project, by their paths below its root.
fn pages() -> BTreeMap<PathBuf, Page> {
    let root = root();
    let hidden = |entry: &walkdir::DirEntry| {
        let name = entry.file_name().to_string_lossy();
        entry.depth() == 1 && (name == "target" || name == ".git")
    };
    let files = walkdir::WalkDir::new(&root).into_iter().filter_entry(|entry| !hidden(entry));
    let paths = files.map(|entry| entry.unwrap().into_path()).filter(|path| {
        let built = path.components().any(|part| part.as_os_str() == "target");
        !built && path.extension().is_some_and(|extension| extension == "md")
    });
    paths.map(|path| (path.strip_prefix(&root).unwrap().to_owned(), read(&path))).collect()
}

fn read(path: &Path) -> Page {
    let text = fs::read_to_string(path).unwrap();
    let mut page = Page::default();
    let (mut heading, mut block) = (None::<String>, None::<String>);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.into())
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap());
                let times = seen.entry(anchor.clone()).or_default();
                page.anchors.insert(if *times == 0 { anchor } else { format!("{anchor}-{times}") });
                *times += 1;
            }
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language)))
                if language.is_empty() || &*language == "sh" =>
            {
                block = Some(String::new());
            }
            Event::End(TagEnd::CodeBlock) => {
                page.commands.extend(block.take().unwrap_or_default().lines().map(str::to_owned));
            }
            Event::Text(words) => {
                if let Some(block) = &mut block {
                    block.push_str(&words);
                }
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
                page.code.push(words.into());
            }
            _ => {}
        }
    }
    page
}

/// GitHub's anchor for a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .collect::<String>();
    kept.trim().replace(' ', "-")
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    assert!(pages.len() > 40, "{} pages", pages.len());
    let mut broken = Vec::new();
    let mut local = 0;
    for (path, page) in &pages {
        for link in page.links.iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            local += 1;
            let (file, anchor) =
                link.split_once('#').map_or((&link[..], None), |(file, anchor)| (file, Some(anchor)));
            let to = if file.is_empty() { path.clone() } else { plain(&path.parent().unwrap().join(file)) };
            let there = root().join(&to).exists()
                && anchor
                    .is_none_or(|anchor| pages.get(&to).is_none_or(|page| page.anchors.contains(anchor)));
            if !there {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty() && local > 150, "{local} links; broken: {broken:#?}");
}

#[test]
fn files_that_the_glossary_and_the_way_of_an_fsync_name_exist() {
    let pages = pages();
    let code = ["docs/GLOSSARY.md", "CONTRIBUTING.md"].map(|page| &pages[Path::new(page)].code);
    let named: Vec<&String> =
        code.into_iter().flatten().filter(|word| word.ends_with(".rs") || word.ends_with(".md")).collect();
    assert!(named.len() > 90, "{}", named.len());
    let root = root();
    let missing: Vec<&&String> = named
        .iter()
        .filter(|word| !root.join(word).exists() && !root.join("crates").join(word).exists())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn commands_and_their_options_exist() {
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut checked = 0;
    let mut wrong = Vec::new();
    for (path, page) in pages() {
        // Commands that were typed once, and those that a release will type.
        if path.starts_with("docs/lab") || path.starts_with("docs/decisions") {
            continue;
        }
        for line in &page.commands {
            let line = line.split(" #").next().unwrap().replace(['\\', '|'], " ");
            let Some(words) =
                line.trim().strip_prefix("sudo ").unwrap_or(line.trim()).strip_prefix("syncline ")
            else {
                continue;
            };
            let words: Vec<&str> =
                words.split_whitespace().take_while(|word| !["--", "&&", ";", ">"].contains(word)).collect();
            // A picture may contain the name.
            if !words.first().is_some_and(|word| word.chars().all(|c| c.is_ascii_lowercase())) {
                continue;
            }
            let is_group = |word: &str| ["snapshot", "quota", "key", "crashlab", "inspect"].contains(&word);
            let len = if words.len() > 1
                && is_group(words[0])
                && words[1].chars().all(|c| c.is_ascii_lowercase())
            {
                2
            } else {
                1
            };
            let command: Vec<String> = words.iter().take(len).map(|word| (*word).to_owned()).collect();
            let help = helps.entry(command.clone()).or_insert_with(|| {
                let mut asked = program();
                asked.arg("help").args(&command);
                let answer = run(asked);
                if answer.code == 0 { answer.out } else { String::new() }
            });
            if help.is_empty() {
                wrong.push(format!("{}: no command '{}'", path.display(), command.join(" ")));
            }
            for option in words.iter().filter(|word| word.starts_with("--")) {
                let option = option.split('=').next().unwrap();
                let mut known = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
                if !known.any(|word| word == option) {
                    wrong.push(format!("{}: '{}' has no {option}", path.display(), command.join(" ")));
                }
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty() && checked > 40, "{checked} lines; {wrong:#?}");
}

#[test]
fn the_book_names_every_page_below_docs_once() {
    let pages = pages();
    let summary = Path::new("docs/SUMMARY.md");
    let links: Vec<PathBuf> =
        pages[summary].links.iter().map(|link| plain(&Path::new("docs").join(link))).collect();
    let chapters: BTreeSet<&PathBuf> = links.iter().collect();
    assert_eq!(chapters.len(), links.len(), "a page is named twice: {links:?}");
    let below: BTreeSet<&PathBuf> =
        pages.keys().filter(|path| path.starts_with("docs") && *path != summary).collect();
    assert_eq!(chapters, below, "what docs/SUMMARY.md names, and what there is");
}

#[test]
fn the_messages_that_are_explained_are_the_programs() {
    let folders = crate_folders().into_iter().map(|folder| folder.join("src"));
    let sources: String = folders.flat_map(|folder| sources(&folder)).map(|(_, text)| text).collect();
    let page = fs::read_to_string(root().join("docs/TROUBLESHOOTING.md")).unwrap();
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let messages: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(messages.len() > 10, "{messages:?}");
    // Where it says "..." or DIR, the program says something else each time.
    let is_gap = |word: &&str| *word == "..." || word.chars().all(|c| c.is_ascii_uppercase());
    let is_said = |message: &str| {
        let words: Vec<&str> = message.split(' ').collect();
        words.split(is_gap).all(|part| sources.contains(&part.join(" ")))
    };
    let unsaid: Vec<&&str> = messages.iter().filter(|message| !is_said(message)).collect();
    assert!(unsaid.is_empty(), "{unsaid:?}");
}

/// cargo packs only what is in a crate's folder.
#[test]
fn published_crates_have_their_licences() {
    let published: Vec<PathBuf> = crate_folders().into_iter().filter(|folder| is_published(folder)).collect();
    assert!(published.len() >= 18, "{published:?}");
    for path in published {
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            assert!(path.join(name).is_file(), "{} has no {name}", path.display());
        }
    }
}

/// The files of Rust in a folder, and their text.
fn sources(folder: &Path) -> impl Iterator<Item = (PathBuf, String)> + use<> {
    let paths = walkdir::WalkDir::new(folder).into_iter().map(|entry| entry.unwrap().into_path());
    let sources = paths.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    sources.map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
}

fn has_tests(text: &str) -> bool {
    ["#[test]", "proptest!"].iter().any(|word| text.contains(word))
}

/// Where a manifest says `autotests = false`, a file that no `mod` names is not even compiled.
#[test]
fn every_file_of_tests_is_part_of_a_program() {
    let program = root().join("crates/cli/tests/main.rs");
    let is_merged = |folder: &PathBuf| {
        fs::read_to_string(folder.join("Cargo.toml")).unwrap().contains("autotests = false")
    };
    let folders = crate_folders().into_iter().filter(is_merged).map(|folder| folder.join("tests"));
    let whole = ["tests", "lab/hosts"].map(|folder| root().join(folder));
    let mut orphans = Vec::new();
    for (path, text) in folders.chain(whole.clone()).flat_map(|folder| sources(&folder)) {
        if path.ends_with("main.rs") || !has_tests(&text) {
            continue;
        }
        let named = if path.ends_with("mod.rs") { path.parent().unwrap() } else { &path };
        let (name, folder) = (named.file_stem().unwrap().display(), named.parent().unwrap());
        let line = format!("mod {name};");
        let is_whole = whole.iter().any(|whole| named == whole || folder == whole);
        let parents = [folder.join("main.rs"), folder.join("mod.rs"), folder.with_extension("rs")];
        let is_named = parents.iter().chain(is_whole.then_some(&program)).any(|parent| {
            fs::read_to_string(parent).is_ok_and(|text| text.lines().any(|found| found.ends_with(&line)))
        });
        if !is_named {
            orphans.push(path);
        }
    }
    assert!(orphans.is_empty(), "no `mod` names {orphans:#?}");
}

/// With `test = false` or `doctest = false` in the manifest, cargo would skip the crate's tests or examples
/// without a word.
#[test]
fn crates_without_test_programs_have_no_tests() {
    let mut wrong = Vec::new();
    for folder in crate_folders() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let library = manifest.split("\n[lib]\n").nth(1).unwrap_or_default().split("\n[").next().unwrap();
        let is_off = |what: &str| library.lines().any(|line| line == what);
        let (no_tests, no_examples) = (is_off("test = false"), is_off("doctest = false"));
        for (path, text) in sources(&folder.join("src")) {
            if no_tests && has_tests(&text) {
                wrong.push(format!("{} has tests", path.display()));
            }
            let fences = text.lines().filter_map(|line| {
                let line = line.trim_start();
                line.strip_prefix("///")
                    .or_else(|| line.strip_prefix("//!"))?
                    .trim_start()
                    .strip_prefix("```")
            });
            // Every second fence ends what the one before began.
            if no_examples && fences.step_by(2).any(|language| language != "text") {
                wrong.push(format!("{} has an example", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "remove `test = false` or `doctest = false`: {wrong:#?}");
}

/// A row behind a blank line is shown as text with bars.
#[test]
fn no_table_is_cut_by_a_blank_line() {
    let is_row = |line: &str| line.starts_with('|');
    for page in pages().into_keys() {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (at, four) in lines.windows(4).enumerate() {
            let cut = is_row(four[0]) && four[1].is_empty() && is_row(four[2]) && !four[3].starts_with("|-");
            assert!(!cut, "{}: line {} is cut off from its table", page.display(), at + 3);
        }
    }
}

/// The crates in these folders, and the ones that each needs: in its program, or also for its tests.
/// A dependency of tests without a version is none for crates.io.
fn crates(folders: Vec<PathBuf>, for_tests: bool) -> BTreeMap<String, BTreeSet<String>> {
    let crates: BTreeMap<String, BTreeSet<String>> = folders
        .into_iter()
        .map(|folder| {
            let text = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
            let name = text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"');
            let (mut section, mut needed) = ("", BTreeSet::new());
            for line in text.lines() {
                section = if line.starts_with('[') { line } else { section };
                let counts = section == "[dependencies]" || for_tests && section == "[dev-dependencies]";
                let ours = line.strip_suffix(".workspace = true").filter(|it| it.starts_with("syncline"));
                needed.extend(ours.filter(|_| counts).map(str::to_owned));
            }
            (name.to_owned(), needed)
        })
        .collect();
    assert!(crates.len() >= 18 && crates["syncline-store"].contains("syncline-log"), "{crates:#?}");
    crates
}

/// Fails if a crate has no place, or two, or not a higher one than each that it needs.
fn require_order(places: &[(usize, String)], crates: &BTreeMap<String, BTreeSet<String>>) {
    let place_of: BTreeMap<&String, usize> = places.iter().map(|(place, name)| (name, *place)).collect();
    assert_eq!(place_of.len(), places.len(), "a crate is named twice: {places:?}");
    let named: BTreeSet<&String> = place_of.keys().copied().collect();
    assert_eq!(named, crates.keys().collect(), "the crates that are named, and those that there are");
    for (name, needed) in crates {
        for needed in needed {
            assert!(place_of[needed] < place_of[name], "{name} needs {needed}, which has no lower place");
        }
    }
}

#[test]
fn every_crate_stands_above_those_that_it_uses() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut places = Vec::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("floor ")) {
        let (floor, rooms) = line.split_once(' ').unwrap();
        for room in rooms.split_whitespace().filter(|room| !room.ends_with('/')) {
            let name = match room {
                "syncline" | "crashlab" => room.to_owned(),
                "capi" => "syncline-c".to_owned(),
                room => format!("syncline-{room}"),
            };
            places.push((floor.parse().unwrap(), name));
        }
    }
    require_order(&places, &crates(crate_folders(), false));
}

#[test]
fn crates_are_published_after_those_that_they_use() {
    let page = fs::read_to_string(root().join("RELEASING.md")).unwrap();
    let steps = page.lines().skip_while(|line| !line.starts_with("One by one")).skip(2);
    let names = steps.take_while(|line| !line.is_empty()).flat_map(|line| line.split('`').skip(1).step_by(2));
    let places: Vec<(usize, String)> = names.map(str::to_owned).enumerate().collect();
    let published = crate_folders().into_iter().filter(|folder| is_published(folder)).collect();
    require_order(&places, &crates(published, true));
}
