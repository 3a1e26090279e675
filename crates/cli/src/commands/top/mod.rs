//! `syncline top`: shows the activity of a mounted filesystem on a page that refreshes itself.

mod files;
mod page;
mod panels;
mod state;
mod terminal;

use super::ask;
use crate::failure::{Failure, Outcome};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use state::State;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Keys: q quit   p pause   + and - interval   s order of the files   h help

Examples:
  syncline top /mnt/data                        watch it
  syncline top /mnt/data --interval 5           renewed every five seconds
  syncline top /mnt/data --once --width 100     one page as text, for a report
  syncline top /mnt/data --json                 the figures of one second, for a program";

/// Arguments of `top`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Any directory of a mounted filesystem
    directory: PathBuf,
    /// Seconds between two pages
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print one page as text, after one interval
    #[arg(long)]
    once: bool,
    /// Columns of that page
    #[arg(long, value_name = "N", default_value_t = 100, requires = "once", value_parser = clap::value_parser!(u16).range(40..=500))]
    width: u16,
    /// Lines of that page
    #[arg(long, value_name = "N", default_value_t = 40, requires = "once", value_parser = clap::value_parser!(u16).range(10..=500))]
    height: u16,
    /// Print the figures of one interval as JSON
    #[arg(long, conflicts_with = "once")]
    json: bool,
}

/// Seconds, perhaps with a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "give seconds, such as 1 or 0.5".to_owned())?;
    if (0.1..=3600.0).contains(&number) {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err("choose from 0.1 to 3600 seconds".into())
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    ask::require_answer(&args.directory, ask::PATIENCE)?;
    let mut state = State::new(args.directory, args.interval)?;
    if args.once || args.json {
        std::thread::sleep(args.interval);
        state.renew()?;
        say_text!("{}\n", if args.json { state.json() } else { text(&state, args.width, args.height)? });
        return Ok(ExitCode::SUCCESS);
    }
    if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        return Err(Failure::usage("'top' needs a terminal").next("use --once for text, or --json"));
    }
    terminal::watch(&mut state)?;
    Ok(ExitCode::SUCCESS)
}

/// A page as lines of text.
fn text(state: &State, width: u16, height: u16) -> Result<String, Failure> {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(drawn) = terminal.draw(|frame| page::draw(frame, state));
    let cells = drawn.buffer.content().chunks(usize::from(width));
    let lines = cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    let lines: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
    Ok(lines.join("\n").trim_end().to_owned())
}
