//! `syncline completions`: a script with which a shell completes command lines.

use crate::failure::Outcome;
use crate::printed;
use clap::Command;
use clap_complete::Shell;
use std::io::Write;
use std::process::ExitCode;

/// Arguments of `completions`.
#[derive(clap::Args)]
pub struct Args {
    /// bash, zsh, fish, elvish or powershell
    shell: Shell,
}

/// A command without what no help shows: generators offer that too.
fn shown(command: &Command) -> Command {
    let seen = command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|command| !command.is_hide_set()).map(shown);
    let aliases: Vec<_> = command.get_visible_aliases().map(kept).collect();
    let shown = Command::new(kept(command.get_name()))
        .disable_help_flag(command.is_disable_help_flag_set())
        .visible_aliases(aliases)
        .args(seen)
        .subcommands(below);
    let about = command.get_about().cloned().unwrap_or_default();
    match command.get_version() {
        Some(version) => shown.about(about).version(kept(version)),
        None => shown.about(about),
    }
}

/// A name for as long as the program lives, which is until the script is printed.
fn kept(name: &str) -> &'static str {
    name.to_owned().leak()
}

/// The completions for a shell.
pub fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(&crate::definition()), "syncline", &mut script);
    script
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    printed::written(std::io::stdout().write_all(&script(args.shell)))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_help_shows_is_not_offered() {
        let script = |shell, command: &mut Command| {
            let mut script = Vec::new();
            clap_complete::generate(shell, command, "syncline", &mut script);
            String::from_utf8(script).unwrap()
        };
        // As each of them has options and commands.
        let hidden = ["--daemon", "-l daemon"];
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let (all, script) =
                (script(shell, &mut crate::definition()), script(shell, &mut shown(&crate::definition())));
            assert!(hidden.iter().any(|name| all.contains(name)), "{shell}: nothing to hide");
            for name in hidden {
                assert!(!script.contains(name), "{shell}: {name}");
            }
            for known in ["read-only", "transport", "snapshot", "rollback", "version"] {
                assert!(script.contains(known), "{shell}: {known}");
            }
        }
    }
}
