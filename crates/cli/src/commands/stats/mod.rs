//! `syncline stats`: the counters of a mounted filesystem.

pub mod network;
pub mod summary;
mod watch;

use super::ask;
use crate::failure::Outcome;
use crate::live::{self, Sample};
use crate::metrics::{self, Mounted};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  syncline stats /mnt/data                      the counters since the mount, in ten lines
  syncline stats /mnt/data --all                every counter
  syncline stats /mnt/data --watch              a line each second; --watch 5 each five
  syncline stats /mnt/data --watch --json       a JSON object for each interval
  syncline stats /mnt/data --prometheus         for node_exporter's textfile collector, or to look at
'syncline top' shows more on one page, 'syncline metrics' serves Prometheus.";

/// Arguments of `stats`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Any directory or file of a mounted filesystem
    directory: PathBuf,
    /// Print every counter
    #[arg(long, conflicts_with_all = ["json", "watch", "prometheus"])]
    all: bool,
    /// Print every counter as JSON
    #[arg(long)]
    json: bool,
    /// Print a line of figures for each interval, in seconds, until the mount is gone
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = interval)]
    watch: Option<Duration>,
    /// Print the text that Prometheus reads
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    prometheus: bool,
}

/// Seconds. A directory that follows --watch would be taken for them, so that is explained.
fn interval(text: &str) -> Result<Duration, String> {
    super::top::seconds(text).map_err(|error| match text.contains('/') || Path::new(text).exists() {
        true => format!("the directory comes first: syncline stats {text} --watch"),
        false => error,
    })
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    ask::require_answer(&args.directory, ask::PATIENCE)?;
    if let Some(every) = args.watch {
        watch::watch(&args.directory, every, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.prometheus {
        let sample = Sample::take(&args.directory)?;
        say_text!("{}", metrics::text(vec![Mounted::new(&args.directory, Some(sample))]));
        return Ok(ExitCode::SUCCESS);
    }
    if !args.all && !args.json {
        say_text!("{}", summary::text(&args.directory, &Sample::take(&args.directory)?));
        return Ok(ExitCode::SUCCESS);
    }
    let stats = live::stats(&args.directory)?;
    if args.json {
        say_text!("{stats:#}\n");
    } else {
        print(&stats);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints every section as a table; names ending in `_ns` are shown in microseconds.
fn print(stats: &Value) {
    for (section, values) in stats.as_object().into_iter().flatten() {
        match values {
            Value::Object(fields) if fields.is_empty() => {}
            Value::Object(fields) => {
                say!("{section}");
                for (name, value) in fields {
                    say!("  {}", line(name, value));
                }
            }
            Value::Null => {}
            value => say!("{section}: {value}"),
        }
    }
}

fn line(name: &str, value: &Value) -> String {
    let Value::Object(summary) = value else {
        return format!("{name:26} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    };
    let nanoseconds = name.ends_with("_ns");
    let label = name.strip_suffix("_ns").unwrap_or(name);
    let mut text = format!("{:26}", if nanoseconds { format!("{label} (µs)") } else { label.to_owned() });
    for (field, value) in summary {
        let number = value.as_f64().unwrap_or(0.0);
        let number = if nanoseconds && field != "count" { number / 1000.0 } else { number };
        text.push_str(&format!(" {field} {number:.1}"));
    }
    text.replace(".0 ", " ").trim_end_matches(".0").to_owned()
}
