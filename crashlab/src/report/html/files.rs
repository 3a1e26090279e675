//! The files that a power cut leaves, beside those that were there before the program and at the cut.

use super::{CHARS_MAX, count, short};
use crate::Error;
use crate::action::Ino;
use crate::contents::Contents;
use crate::report::{Entry, Report, shown};
use crate::state::State;
use crate::tree::{Kind, Node, Tree};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Files that are listed: those that differ, and the others.
const DIFFERENT_MAX: usize = 200;
const SAME_MAX: usize = 500;
/// Files whose text is shown, and the most bytes and lines of one.
const TEXTS_MAX: usize = 10;
const TEXT_BYTES_MAX: u64 = 64 << 10;
const LINES_MAX: usize = 12;
/// The moments of a file.
const MOMENTS: [&str; 3] =
    ["Before the program", "At the cut, had nothing been lost", "Left by the power cut"];

/// A path, and what it was at each moment.
struct File<'a> {
    path: Vec<u8>,
    nodes: [Option<&'a Node>; 3],
}

/// The files of a state; nothing where it has no tree.
pub fn files(report: &Report<'_>, entry: &Entry<'_>) -> Markup {
    match trees(report, entry) {
        Ok(Some(trees)) => comparison(&trees),
        Ok(None) => html! {},
        Err(error) => html! { p.note { "Its files can't be shown: " (shown(&error.to_string())) } },
    }
}

fn trees(report: &Report<'_>, entry: &Entry<'_>) -> Result<Option<[Tree; 3]>, Error> {
    let whole = |position| report.history.tree(&State { position, lost: BTreeMap::new() });
    let left = match entry.state {
        Some(state) => Some(report.history.tree(state)?),
        None => report.seen.first().and_then(|seen| seen.tree.clone()),
    };
    let Some(left) = left else { return Ok(None) };
    Ok(Some([whole(report.begin())?, whole(report.begin() + entry.position)?, left]))
}

fn comparison(trees: &[Tree; 3]) -> Markup {
    let mut paths: BTreeMap<Vec<u8>, [Option<Ino>; 3]> = BTreeMap::new();
    for (moment, tree) in trees.iter().enumerate() {
        for (path, ino) in tree.walk() {
            paths.entry(path).or_default()[moment] = Some(ino);
        }
    }
    let files = paths.into_iter().map(|(path, inodes)| {
        let nodes = [0, 1, 2].map(|moment| inodes[moment].and_then(|ino| trees[moment].node(ino)));
        File { path, nodes }
    });
    let (same, different): (Vec<File<'_>>, Vec<File<'_>>) = files.partition(|file| file.verdict().is_none());
    html! {
        h3 { "The files" }
        @if different.is_empty() { p { "They are as the program had left them at the cut." } }
        @else { (table(&different, DIFFERENT_MAX)) }
        @for file in different.iter().filter(|file| file.is_text()).take(TEXTS_MAX) { (text(file)) }
        @if !same.is_empty() {
            details.same {
                summary { b { (count(same.len(), if different.is_empty() { "path" } else { "other path" })) } " " span.note { "as the program had left them" } }
                (table(&same, SAME_MAX))
            }
        }
    }
}

fn table(files: &[File<'_>], most: usize) -> Markup {
    html! {
        div.wide {
            table {
                thead { tr { th { "Path" } @for moment in MOMENTS { th { (moment) } } th { "Difference" } } }
                tbody {
                    @for file in files.iter().take(most) {
                        tr {
                            th { code { (short(&shown(&String::from_utf8_lossy(&file.path)))) } }
                            @for (moment, node) in MOMENTS.iter().zip(file.nodes) {
                                td data-moment=(moment) { (cell(node)) }
                            }
                            td.verdict { (file.verdict().unwrap_or_default()) }
                        }
                    }
                }
            }
        }
        @if files.len() > most { p.note { (files.len() - most) " more are not listed here." } }
    }
}

fn cell(node: Option<&Node>) -> Markup {
    let Some(node) = node else { return html! { span.none { "none" } } };
    match &node.kind {
        Kind::File(contents) => html! { (count(contents.len() as usize, "byte")) },
        Kind::Directory(_) => html! { "directory" },
        Kind::Symlink(target) => {
            html! { "symlink to " code { (short(&shown(&String::from_utf8_lossy(target)))) } }
        }
        Kind::Special(..) => html! { "special file" },
    }
}

impl File<'_> {
    /// How what is left differs from what the program had made.
    fn verdict(&self) -> Option<&'static str> {
        let [before, cut, left] = self.nodes;
        let (cut, left) = match (cut, left) {
            (None, None) => return None,
            (Some(_), None) => return Some("missing"),
            (None, Some(_)) => return Some("still there"),
            (Some(cut), Some(left)) => (cut, left),
        };
        if has_same_contents(cut, left) {
            let has_same = (cut.mode, cut.uid, cut.gid) == (left.mode, left.uid, left.gid);
            let is_same = has_same && cut.xattrs == left.xattrs;
            return (!is_same).then_some("other attributes");
        }
        Some(match &left.kind {
            _ if before.is_some_and(|before| has_same_contents(before, left)) => "old contents",
            Kind::File(contents) if contents.is_empty() => "empty",
            Kind::File(contents) if contents.allocated_bytes() == 0 => "only zeros",
            _ => "other contents",
        })
    }

    fn contents(&self) -> [Option<&Contents>; 3] {
        self.nodes.map(|node| match node.map(|node| &node.kind) {
            Some(Kind::File(contents)) => Some(contents),
            _ => None,
        })
    }

    /// A small text, as far as its bytes are there.
    fn is_text(&self) -> bool {
        let contents = self.contents();
        let is_small = contents.iter().flatten().all(|contents| contents.len() <= TEXT_BYTES_MAX);
        let is_text = |contents: &Contents| {
            let text = as_text(contents);
            let controls =
                text.chars().filter(|c| c.is_control() && !matches!(c, '\n' | '\t' | '\r')).count();
            controls == 0 && !text.contains('\u{fffd}')
        };
        is_small && contents.iter().any(Option::is_some) && contents.into_iter().flatten().all(is_text)
    }
}

fn has_same_contents(one: &Node, other: &Node) -> bool {
    match (&one.kind, &other.kind) {
        (Kind::File(one), Kind::File(other)) => one.digest() == other.digest(),
        (Kind::Directory(_), Kind::Directory(_)) => true,
        (Kind::Symlink(one), Kind::Symlink(other)) => one == other,
        (Kind::Special(kind, device), Kind::Special(other, of)) => (kind, device) == (other, of),
        _ => false,
    }
}

/// The text of a file, with zeros in words: a lost page reads as zeros.
fn as_text(contents: &Contents) -> String {
    let bytes = match contents.read(0, contents.len() as usize) {
        Ok(bytes) => bytes,
        Err(error) => return format!("[{error}]"),
    };
    let mut text = String::new();
    for run in bytes.chunk_by(|one, next| (*one == 0) == (*next == 0)) {
        match run[0] {
            0 => text += &format!("[{}]", count(run.len(), "zero byte")),
            _ => text += &String::from_utf8_lossy(run),
        }
    }
    text
}

/// The text of a file at each moment, from a little before the first line that differs.
fn text(file: &File<'_>) -> Markup {
    let texts = file.contents().map(|contents| contents.map(as_text));
    let lines = texts.each_ref().map(|text| text.iter().flat_map(|text| text.lines()).collect::<Vec<_>>());
    let [_, cut, left] = &lines;
    let equal = cut.iter().zip(left).take_while(|(one, other)| one == other).count();
    let skipped = match equal {
        0..=2 => 0,
        _ => equal - 2,
    };
    html! {
        h4 { code { (short(&shown(&String::from_utf8_lossy(&file.path)))) } }
        div.texts {
            @for ((moment, text), lines) in MOMENTS.iter().zip(&texts).zip(&lines) {
                figure {
                    figcaption { (moment) }
                    @match text {
                        None => { p.none { "none" } }
                        Some(text) if text.is_empty() => { p.none { "empty" } }
                        Some(_) => (excerpt(lines, skipped)),
                    }
                }
            }
        }
    }
}

fn excerpt(lines: &[&str], skipped: usize) -> Markup {
    let first = skipped.min(lines.len());
    let more = lines.len().saturating_sub(first + LINES_MAX);
    html! {
        @if first > 0 { p.note { (count(first, "line")) " before" } }
        pre {
            @for line in lines.iter().skip(first).take(LINES_MAX) {
                (shown(&line.chars().take(CHARS_MAX).collect::<String>())) "\n"
            }
        }
        @if more > 0 { p.note { (count(more, "line")) " more" } }
    }
}
