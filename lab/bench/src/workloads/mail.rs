//! Delivery into a Maildir: the message is written to `tmp` and synced, then renamed into `new`, and
//! `new` is synced.

use crate::error::During;
use crate::files::{BuiltIn, FileLoad, Files};
use crate::jobs::{Job, drive};
use crate::workload::{Pace, Sample, Unit};
use crate::{BenchError, Interrupt};
use std::io;

/// Bytes of a message.
const MESSAGE_BYTES: usize = 4 << 10;

/// The workload.
pub struct Mail {
    jobs: usize,
}

impl Mail {
    /// With this many deliveries at a time, each to a Maildir of its own.
    pub fn new(jobs: usize) -> Self {
        Self { jobs }
    }
}

fn deliver(files: &dyn Files, mailbox: usize, job: &mut Job<'_>) -> io::Result<()> {
    let message = [b'm'; MESSAGE_BYTES];
    let new = format!("mail-{mailbox}/new");
    for number in 0_u64.. {
        if !job.goes_on() {
            break;
        }
        let name = format!("mail-{mailbox}/tmp/{number}");
        job.time(|| {
            let file = files.create(&name)?;
            file.write_all_at(&message, 0)?;
            file.sync_all()?;
            files.rename(&name, &format!("{new}/{number}"))?;
            files.sync_dir(&new)
        })?;
        job.done(MESSAGE_BYTES as u64);
    }
    Ok(())
}

impl BuiltIn for Mail {
    fn suite(&self) -> &'static str {
        "mail"
    }

    fn title(&self) -> String {
        "Maildir delivery, 4 KiB, message and directory synced".into()
    }

    fn variant(&self) -> String {
        if self.jobs == 1 { "1 job".into() } else { format!("{} jobs", self.jobs) }
    }

    fn measure(&self) -> (Unit, &'static str) {
        (Unit::PerSecond("deliveries"), "delivery")
    }
}

impl FileLoad for Mail {
    fn make(&self, files: &dyn Files, _interrupt: &Interrupt) -> Result<(), BenchError> {
        let make = |name: &str| files.create_dir(name).during(|| format!("making {name}"));
        (0..self.jobs).try_for_each(|mailbox| {
            make(&format!("mail-{mailbox}"))?;
            make(&format!("mail-{mailbox}/tmp"))?;
            make(&format!("mail-{mailbox}/new"))
        })
    }

    fn load(&self, files: &dyn Files, pace: Pace<'_>) -> Result<Sample, BenchError> {
        drive((0..self.jobs).collect(), pace, |mailbox, job| deliver(files, mailbox, job))
    }
}
