//! `syncline metrics`: what mounts have counted, for Prometheus to fetch by HTTP.

use crate::failure::{Cause, Failure, Outcome};
use crate::live::Sample;
use crate::metrics::{self, Mounted};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tiny_http::{Header, Method, Request, Response, Server};

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
elsewhere than on the loopback interface, put a proxy in front.";

/// Arguments of `metrics`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directories of mounted filesystems; one that is not mounted is told to be down
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
    let server = Server::http(args.listen).map_err(|error| {
        let text = format!("cannot listen at {}: {error}", args.listen);
        match error.downcast::<std::io::Error>() {
            Ok(error) => Failure::from(*error).with_text(text),
            Err(_) => Failure::of(Cause::Other, text),
        }
        .next("choose another address or port with --listen")
    })?;
    // With port 0 the system has chosen one.
    println!("http://{}/metrics", server.server_addr());
    while !stop.load(Ordering::Relaxed) {
        if let Some(request) = server.recv_timeout(NOTICE)? {
            answer(request, &args.directories);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(request: Request, directories: &[PathBuf]) {
    let path = request.url().split('?').next().unwrap_or_default();
    let response = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => {
            Response::from_string(of(directories)).with_header(content_type(metrics::CONTENT_TYPE))
        }
        (Method::Get | Method::Head, "/") => Response::from_string("The metrics are at /metrics.\n"),
        (Method::Get | Method::Head, _) => {
            Response::from_string("There is only /metrics.\n").with_status_code(404)
        }
        _ => Response::from_string("Only GET and HEAD are understood.\n").with_status_code(405),
    };
    // Whoever asked may have gone.
    if let Err(error) = request.respond(response) {
        tracing::debug!("an answer did not arrive: {error}");
    }
}

fn content_type(text: &str) -> Header {
    Header::from_bytes("Content-Type", text).expect("it is ASCII")
}

/// The metrics of mounts at this moment.
pub fn of(directories: &[PathBuf]) -> String {
    let asked = directories.iter().map(|directory| {
        let sample = Sample::take(directory);
        if let Err(failure) = &sample {
            tracing::warn!("{failure}");
        }
        Mounted::new(directory, sample.ok())
    });
    metrics::text(asked.collect())
}
