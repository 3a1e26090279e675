//! fio, if it is installed: the same load that the published tables were measured with.

use crate::workload::{Pace, Sample};
use crate::{BenchError, command};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program and its version.
#[derive(Clone, Debug)]
pub struct Fio {
    program: PathBuf,
    version: String,
}

/// The load: writes of 64 KiB, each followed by an fsync.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// fio's `rw`.
    pub pattern: &'static str,
    /// Threads, with a file each.
    pub jobs: usize,
    /// Length of each file.
    pub file_bytes: u64,
}

/// fio's name for a job's file, for preparing it.
pub fn file_name(job: usize) -> String {
    format!("bench.{job}.0")
}

impl Fio {
    /// fio, if it is installed.
    pub fn find() -> Option<Self> {
        let program = command::find("fio")?;
        let version = command::succeed(Command::new(&program).arg("--version"), None).ok()?;
        Some(Self { program, version: version.trim().to_owned() })
    }

    /// Its version, as it reports it.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Runs it. The latency is that of the fsync.
    pub fn run(&self, load: Load, directory: &Path, pace: Pace<'_>) -> Result<Sample, BenchError> {
        let mut fio = Command::new(&self.program);
        // Otherwise a directory or device in the current directory with the job's name would be
        // taken for its file.
        fio.current_dir(directory).arg("--name=bench");
        fio.arg(format!("--directory={}", directory.display()));
        fio.arg(format!("--rw={}", load.pattern));
        fio.args(["--bs=64k", "--fsync=1", "--fallocate=none", "--ioengine=sync", "--direct=0", "--thread"]);
        fio.arg(format!("--numjobs={}", load.jobs)).arg(format!("--size={}", load.file_bytes));
        fio.arg(format!("--runtime={}ms", pace.duration.as_millis()))
            .args(["--time_based", "--group_reporting"]);
        fio.arg("--output-format=json");
        let text = command::succeed(&mut fio, Some(pace.interrupt))?;
        let last = directory.join(file_name(load.jobs - 1));
        if !last.is_file() {
            // Jobs that share a file also share its syncs, which is a different load.
            let said = format!("{} is not there", last.display());
            return Err(BenchError::Answer { what: "what fio did".into(), said });
        }
        parse(&text)
    }
}

/// Parses fio's JSON, which notes may precede.
fn parse(text: &str) -> Result<Sample, BenchError> {
    let no_sense = |said: String| BenchError::Answer { what: "fio's report".into(), said };
    let json = text.find('{').map_or("", |at| &text[at..]);
    let report: Value = serde_json::from_str(json).map_err(|error| no_sense(error.to_string()))?;
    let job = &report["jobs"][0];
    let number = |value: &Value, name: &str| {
        value[name].as_u64().ok_or_else(|| no_sense(format!("{name} is missing")))
    };
    let write = &job["write"];
    let percentile = |name: &str| job["sync"]["lat_ns"]["percentile"][name].as_u64();
    Ok(Sample {
        operations: number(write, "total_ios")?,
        seconds: number(write, "runtime")? as f64 / 1000.0,
        data_bytes: number(write, "io_bytes")?,
        p50_ns: percentile("50.000000"),
        p99_ns: percentile("99.000000"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interrupt;
    use crate::workloads::tests::until_something_is_done;

    #[test]
    fn a_report_is_read_behind_its_notes() {
        let text = r#"note: something
            {"jobs": [{"write": {"total_ios": 10, "runtime": 500, "io_bytes": 655360},
             "sync": {"lat_ns": {"percentile": {"50.000000": 200, "99.000000": 900}}}}]}"#;
        let sample = parse(text).unwrap();
        assert_eq!((sample.operations, sample.seconds, sample.data_bytes), (10, 0.5, 655_360));
        assert_eq!((sample.p50_ns, sample.p99_ns), (Some(200), Some(900)));
        assert!(parse("fio: broken").is_err());
        assert!(parse(r#"{"jobs": []}"#).unwrap_err().to_string().contains("missing"));
    }

    #[test]
    fn the_real_one_understands_us() {
        let Some(fio) = Fio::find() else {
            eprintln!("skipped: fio is not installed");
            return;
        };
        let (folder, interrupt) = (tempfile::tempdir().unwrap(), Interrupt::default());
        let load = Load { pattern: "write", jobs: 2, file_bytes: 1 << 20 };
        let sample = until_something_is_done(&interrupt, |pace| fio.run(load, folder.path(), pace).unwrap());
        assert!(sample.p50_ns.is_some(), "{sample:?}");
        assert_eq!(sample.data_bytes, sample.operations * (64 << 10));
        assert!(folder.path().join(file_name(1)).is_file());
    }
}
