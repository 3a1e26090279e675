//! `syncline metrics`: serves the counters of mounts for Prometheus to fetch over HTTP.

use super::ask;
use crate::failure::{Failure, Outcome};
use crate::metrics::{self, Asked, Server};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use syncline_fuse::control::{self, ControlError};

/// How long a signal may go unnoticed.
const NOTICE: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
Examples:
  syncline metrics /mnt/data                             at http://127.0.0.1:9499/metrics
  syncline metrics /mnt/a /mnt/b --listen [::1]:9000

For prometheus.yml:
  scrape_configs:
    - job_name: syncline
      static_configs:
        - targets: ['127.0.0.1:9499']

A dashboard for Grafana is among the examples, grafana/syncline.json. There is no password and no encryption: to listen
elsewhere than on the loopback interface, put a proxy in front. A request has 8 KiB and 5 seconds for its head, a connection
one request and 15 seconds; there are 64 connections at most, and another one takes the place of the oldest.";

/// Arguments of `metrics`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directories of mounted filesystems; one where nothing is mounted is reported as down
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Address and port to listen at
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9499")]
    listen: SocketAddr,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut absent = Vec::new();
    for directory in &args.directories {
        if ask::require_answer(directory, ask::PATIENCE).is_err() {
            absent.push(directory.clone());
            continue;
        }
        match control::text(directory, "daemon") {
            Ok(_) => {}
            // A mount may appear later, but not without its directory.
            Err(ControlError::Open { path, source }) if source.kind() == ErrorKind::NotFound => {
                return Err(ControlError::Open { path, source }.into());
            }
            Err(_) => absent.push(directory.clone()),
        }
    }
    let mounts: Vec<Asked> = args.directories.into_iter().map(Asked::new).collect();
    let text = move || metrics::text(metrics::ask(&mounts));
    let server = Server::listen(args.listen, metrics::CONTENT_TYPE, text);
    let server = server.map_err(|error| {
        let text = format!("cannot listen at {}: {error}", args.listen);
        Failure::from(error).with_text(text).next("choose another address or port with --listen")
    })?;
    for directory in absent {
        let directory = directory.display();
        note!(
            "syncline: no Syncline filesystem answers at {directory}: it is reported as down until one does"
        );
    }
    say!("http://{}/metrics", server.address()?);
    server.serve(NOTICE, || stop.load(Ordering::Relaxed));
    Ok(ExitCode::SUCCESS)
}
