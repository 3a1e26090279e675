//! Suggestions for an error of the command line: only visible commands, and for some wrong words
//! the right one.

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands and options of other programs or of earlier versions, and what to type here.
const ELSEWHERE: [(&str, &str); 8] = [
    (
        "bench",
        "'syncline-lab bench' measures; 'cargo install --path lab/cli' in Syncline's sources installs it",
    ),
    ("df", "'df' shows the space of mounts, 'syncline info IMAGE' that of an image"),
    ("ps", "'syncline status' shows all mounts of this machine"),
    ("rollback", "'syncline snapshot rollback IMAGE NAME' makes a snapshot the filesystem"),
    (
        "archive",
        "'syncline run IMAGE -- tar ...' makes and unpacks archives; add -o snapshot=NAME for a snapshot",
    ),
    ("dedupe", "'cp --reflink=auto' and 'syncline clone' share data when it is copied"),
    ("--undo", COPY_FIRST),
    ("--take-back", COPY_FIRST),
];
/// The tip for the options of an undo file, which repair no longer keeps.
const COPY_FIRST: &str = "copy the image before a repair: 'cp --sparse=always IMAGE COPY'";

/// Replaces the suggestions of an error by helpful ones.
pub fn mend(error: &mut clap::Error, definition: &Command) {
    leave_out_hidden(error, definition);
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return,
    };
    let Some(ContextValue::String(word)) = error.get(kind) else { return };
    let tip = match ELSEWHERE.iter().find(|(name, _)| name == word) {
        Some((_, tip)) => (*tip).to_owned(),
        None if is_of_snapshots(error) && std::path::Path::new(word).exists() => {
            format!("to make a snapshot, 'syncline snapshot create {word} NAME'")
        }
        None => return,
    };
    // A word that merely looks similar was not meant.
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::SuggestedArg);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
}

/// True if the wrong word stands where `snapshot` has its commands.
fn is_of_snapshots(error: &clap::Error) -> bool {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => return false,
    };
    usage.contains("syncline snapshot ")
}

/// A command that no help shows must not be suggested.
fn leave_out_hidden(error: &mut clap::Error, definition: &Command) {
    let Some(ContextValue::Strings(mut names)) = error.remove(ContextKind::SuggestedSubcommand) else {
        return;
    };
    names.retain(|name| definition.find_subcommand(name).is_none_or(|command| !command.is_hide_set()));
    if !names.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
    }
}
