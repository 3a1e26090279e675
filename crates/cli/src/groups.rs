//! The commands in groups, as `syncline --help` shows them.

use crate::printed::fold;
use clap::Command;
use std::fmt::Write;

/// Headings, and the commands below them in the order in which a user meets them.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Everyday",
        &[
            "mkfs", "mount", "umount", "run", "status", "snapshot", "fork", "send", "receive", "clone",
            "sync", "barrier",
        ],
    ),
    (
        "Maintain",
        &[
            "check",
            "scrub",
            "resize",
            "trim",
            "takeover",
            "label",
            "uuid",
            "key",
            "quota",
            "durability",
            "compress",
            "defragment",
        ],
    ),
    ("Observe", &["stats", "top", "explain", "metrics", "info", "ls", "cat", "cp", "du", "path", "inspect"]),
    ("Laboratory", &["demo", "crashlab"]),
];
/// Width of the names.
const NAME: usize = 14;

/// The program's definition, with help that shows its commands in groups.
pub fn grouped(command: Command) -> Command {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "{heading}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = write!(text, "  {name:NAME$}");
            fold(&about, NAME + 2, &mut text);
        }
        text.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}'syncline help COMMAND' tells more; 'completions' prints what \
         a shell needs,\n'setup' installs that, the manual and the helpers of mount(8).\n\nOptions:\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printed::COLUMNS;

    #[test]
    fn every_command_is_in_one_group_and_on_one_line() {
        let command = crate::definition();
        let mut shown: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        shown.extend(["completions", "setup"]);
        let mut there: Vec<&str> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set() && command.get_name() != "help")
            .map(Command::get_name)
            .collect();
        shown.sort_unstable();
        there.sort_unstable();
        assert_eq!(shown, there);
        let help = crate::definition().render_help().to_string();
        for name in shown {
            assert!(help.contains(name), "{name}: {help}");
        }
        let commands = help.split("Everyday").nth(1).unwrap().split("Options:").next().unwrap();
        assert!(commands.lines().all(|line| line.len() <= COLUMNS && !line.ends_with(' ')), "{help}");
    }
}
