//! The manual: syncline(1), written by hand except for its synopsis, and a page for each command. A
//! command's name, synopsis and options come from the definitions that parse the command line, and
//! its description from syncline(1).

use crate::failure::{Failure, Outcome};
use clap::{Arg, Command};
use clap_mangen::Man;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The handwritten page. (Through a link: this crate is published with its own folder only.)
const BOOK: &str = include_str!("../../syncline.1");
/// The start of the page of each command.
pub const MADE: &str = ".\\\" Made of the program's definitions";
/// The names of the handwritten page's sections that belong to one command.
const SECTIONS: [(&str, &str); 4] = [
    ("mount", "MOUNT OPTIONS"),
    ("explain", "RECEIPTS"),
    ("check", "FINDINGS"),
    ("inspect", "INSPECT COMMANDS"),
];

/// Arguments of the hidden command `manual`.
#[derive(clap::Args)]
pub struct Args {
    /// Where the pages are written
    directory: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    for (name, text) in pages() {
        let path = args.directory.join(name);
        std::fs::write(&path, text).map_err(|error| Failure::from(error).about(&path))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Every page: its file name and text.
pub fn pages() -> Vec<(String, String)> {
    let mut definition = crate::definition();
    definition.build();
    let commands = below(&definition);
    let mut pages = vec![("syncline.1".to_owned(), book(&commands))];
    for command in &commands {
        pages.push((format!("{}.1", page_name(command)), page(command)));
    }
    pages
}

/// All commands below this one, each before its own subcommands.
fn below(command: &Command) -> Vec<Command> {
    let wanted = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    let each = command.get_subcommands().filter(wanted);
    each.flat_map(|command| std::iter::once(command.clone()).chain(below(command))).collect()
}

fn page_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).replace(' ', "-")
}

/// The handwritten page, with the current synopsis.
fn book(commands: &[Command]) -> String {
    let leaves = commands.iter().filter(|command| !command.has_subcommands());
    let lines: Vec<String> = leaves.map(synopsis).collect();
    let (before, rest) = BOOK.split_once(".SH SYNOPSIS\n").expect("the page has a synopsis");
    let (_, after) = rest.split_once(".SH ").expect("sections follow");
    format!("{before}.SH SYNOPSIS\n{}\n.SH {after}", lines.join("\n.br\n"))
}

/// A command's usage, in one line of roff.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut words = vec![format!("\\fB{}\\fR", escaped(name))];
    let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let options = command.get_arguments().filter(|arg| !arg.is_positional()).filter(shown).map(option);
    let arguments = command.get_positionals().filter(shown).map(positional);
    words.extend(options.chain(arguments));
    if command.has_subcommands() {
        words.push("\\fICOMMAND\\fR".into());
    }
    words.join(" ")
}

fn option(arg: &Arg) -> String {
    let name = match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("\\-\\-{}", escaped(long)),
        (None, short) => format!("\\-{}", short.unwrap_or('?')),
    };
    let mut text = format!("\\fB{name}\\fR");
    if arg.get_action().takes_values() {
        let least = arg.get_num_args().map_or(1, |range| range.min_values());
        let value = values(arg);
        text.push_str(&if least == 0 { format!(" [{value}]") } else { format!(" {value}") });
    }
    if arg.is_required_set() { text } else { format!("[{text}]") }
}

fn positional(arg: &Arg) -> String {
    let many = if arg.get_num_args().is_some_and(|range| range.max_values() > 1) { " ..." } else { "" };
    let text = format!("{}{}{many}", if arg.is_last_set() { "\\-\\- " } else { "" }, values(arg));
    if arg.is_required_set() { text } else { format!("[{text}]") }
}

fn values(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    names.iter().map(|name| format!("\\fI{}\\fR", escaped(name))).collect::<Vec<_>>().join(" ")
}

type Render = fn(&Man, &mut dyn std::io::Write) -> std::io::Result<()>;

fn rendered(command: &Command, render: Render) -> String {
    let mut text = Vec::new();
    render(&Man::new(command.clone()), &mut text).expect("writing to memory can't fail");
    let text = String::from_utf8(text).expect("roff is text");
    // The text begins with a definition of the apostrophe, which has a name of its own.
    let lines = text.lines().skip_while(|line| !line.starts_with(".SH"));
    lines.map(|line| format!("{}\n", line.trim_end().replace("\\*(Aq", "\\(aq"))).collect()
}

fn page(command: &Command) -> String {
    let name = page_name(command);
    let bin_name = command.get_bin_name().unwrap_or_default();
    let words = bin_name.strip_prefix("syncline ").unwrap_or_default();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("{MADE} and of syncline.1 by 'just man'.\n");
    let title = name.to_uppercase().replace('-', "\\-");
    let _ = writeln!(text, ".TH {title} 1 \"2026\" \"Syncline {version}\" \"User Commands\"");
    let _ = writeln!(text, ".SH NAME\n{} \\- {}", name.replace('-', "\\-"), escaped(&about));
    let _ = writeln!(text, ".SH SYNOPSIS\n{}", synopsis(command));
    if let Some(description) = entry(words) {
        let _ = write!(text, ".SH DESCRIPTION\n{description}");
    }
    if command.has_subcommands() {
        text.push_str(".SH COMMANDS\n");
        for one in below(command) {
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            let _ =
                writeln!(text, ".TP\n.BR {} (1)\n{}", page_name(&one).replace('-', "\\-"), escaped(&about));
        }
    }
    text.push_str(&rendered(command, Man::render_options_section));
    for (_, section) in SECTIONS.iter().filter(|(owner, _)| *owner == words) {
        text.push_str(&section_of_book(section));
    }
    if let Some(help) = command.get_after_help() {
        let help = help.to_string();
        let examples = help.strip_prefix("Examples:\n").unwrap_or(&help);
        let _ = writeln!(text, ".SH EXAMPLES\n.nf\n{}\n.fi", escaped(examples));
    }
    text.push_str(".SH SEE ALSO\n.BR syncline (1)\n");
    text
}

/// The handwritten page's entry for a command.
fn entry(words: &str) -> Option<String> {
    let commands = section_of_book("COMMANDS");
    let head = format!(".TP\n.B {words}\n");
    let (_, rest) = commands.split_once(&head)?;
    let end = rest.find("\n.TP\n").map_or(rest.len(), |end| end + 1);
    Some(rest[..end].to_owned())
}

/// A section of the handwritten page, with its heading; empty if there is none.
fn section_of_book(name: &str) -> String {
    let head = format!(".SH {name}\n");
    let Some((_, rest)) = BOOK.split_once(&head) else { return String::new() };
    let end = rest.find("\n.SH ").map_or(rest.len(), |end| end + 1);
    format!("{head}{}", &rest[..end])
}

/// Text escaped for roff: hyphens that can be copied, and no line that looks like a request.
fn escaped(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn the_pages_are_what_the_definitions_give() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
        for (name, text) in pages() {
            let committed = std::fs::read_to_string(folder.join(&name)).unwrap_or_default();
            assert!(committed == text, "{name} is not what the definitions give: run 'just man'");
        }
        let names: BTreeSet<String> = pages().into_iter().map(|(name, _)| name).collect();
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(names.contains(&name), "{name} is of no command: remove it");
        }
    }

    /// Roff requests must be on lines of their own; some of them join the words that follow without
    /// spaces.
    #[test]
    fn requests_and_text_are_on_lines_of_their_own() {
        for (name, text) in pages() {
            for line in text.lines() {
                assert!(![". .B", ". .I"].iter().any(|request| line.contains(request)), "{name}: {line}");
                let alternating = [".BR ", ".RB ", ".IR ", ".RI ", ".BI ", ".IB "];
                if let Some(words) = alternating.iter().find_map(|request| line.strip_prefix(request)) {
                    // Quoted text has its own spaces.
                    let bare: String = words.split('"').step_by(2).collect();
                    let ends = |word: &str| word.ends_with([';', ',']) || word.ends_with(").");
                    let run_together = bare.split(' ').rev().skip(1).any(ends);
                    assert!(!run_together, "{name}: {line}");
                }
            }
        }
    }

    #[test]
    fn every_command_is_described() {
        let mut definition = crate::definition();
        definition.build();
        for command in below(&definition).iter().filter(|command| !command.has_subcommands()) {
            let words = command.get_bin_name().unwrap().strip_prefix("syncline ").unwrap();
            assert!(entry(words).is_some_and(|text| text.len() > 20), "syncline.1 does not describe {words}");
        }
        for (_, section) in SECTIONS.iter().filter(|(owner, _)| definition.find_subcommand(owner).is_some()) {
            assert!(section_of_book(section).len() > 100, "{section}");
        }
    }

    #[test]
    fn every_option_is_in_its_page() {
        let mut definition = crate::definition();
        definition.build();
        for command in below(&definition) {
            let text = page(&command);
            for long in
                command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| arg.get_long())
            {
                let long = long.replace('-', "\\-");
                assert!(
                    text.contains(&format!("\\-\\-{long}")),
                    "--{long} is missing in {}",
                    page_name(&command)
                );
            }
        }
    }
}
