//! The moments of a recording after which a power cut leaves something else, or has to leave more.

use crate::recording::{MarkKind, Recording};
use std::collections::BTreeMap;
use syncline_sim::Event;

/// Why a moment counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// COMMAND began.
    Begin,
    /// The device had ended a flush.
    Flush,
    /// An fsync of this inode was answered.
    Fsync(u64),
    /// An fdatasync of this inode was answered.
    Fdatasync(u64),
    /// A sync of the whole filesystem was answered.
    SyncFs,
    /// COMMAND had printed this line.
    Line(Vec<u8>),
    /// COMMAND had ended.
    Ended,
    /// Everything was written: the image was unmounted.
    Unmounted,
}

/// A moment that counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// Events before it.
    pub position: usize,
    /// Nanoseconds since the start.
    pub time_ns: u64,
    /// Why it counts.
    pub causes: Vec<Cause>,
    /// Writes since the point before.
    pub writes: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Writes whose fate was open just before it: each subset of them is an image.
    pub open_writes: usize,
}

/// From one point up to the next: what is durable and what was told stay the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// First position.
    pub begin: usize,
    /// Last position: all writes of the stretch are submitted.
    pub end: usize,
}

/// The points of a recording, from the beginning of COMMAND on.
pub fn points(recording: &Recording) -> Vec<Point> {
    let mut images = recording.images();
    let mut points: Vec<Point> = Vec::new();
    for (position, causes) in causes(recording) {
        let before = points.last().map_or(position, |point: &Point| point.position);
        let lens = recording.events[before..position].iter().filter_map(|event| match event {
            Event::Write { bufs, .. } => Some(bufs.iter().map(|buf| buf.len() as u64).sum::<u64>()),
            _ => None,
        });
        let (writes, bytes) = lens.fold((0, 0), |(writes, bytes), len| (writes + 1, bytes + len));
        let time = recording.marks.iter().find(|mark| mark.position >= position);
        let time_ns = time.or(recording.marks.last()).map_or(0, |mark| mark.time_ns);
        let open_writes = images.cut(position.saturating_sub(1).max(before)).open().len();
        points.push(Point { position, time_ns, causes, writes, bytes, open_writes });
    }
    points
}

fn causes(recording: &Recording) -> BTreeMap<usize, Vec<Cause>> {
    let (begin, end) = (recording.info.begin, recording.events.len());
    let mut causes = BTreeMap::from([(begin, vec![Cause::Begin])]);
    let mut add = |position: usize, cause| {
        if position >= begin {
            causes.entry(position).or_default().push(cause);
        }
    };
    // The flush that ended the mount's own recovery is not COMMAND's.
    for (at, event) in recording.events.iter().enumerate().skip(begin) {
        if matches!(event, Event::FlushEnded { ok: true, .. }) {
            add(at + 1, Cause::Flush);
        }
    }
    for mark in &recording.marks {
        let cause = match &mark.kind {
            MarkKind::Flush => continue,
            MarkKind::Fsync(ino) => Cause::Fsync(*ino),
            MarkKind::Fdatasync(ino) => Cause::Fdatasync(*ino),
            MarkKind::SyncFs => Cause::SyncFs,
            MarkKind::Line(line) => Cause::Line(line.clone()),
            MarkKind::Ended => Cause::Ended,
        };
        add(mark.position, cause);
    }
    add(end, Cause::Unmounted);
    causes
}

/// What lies between the points, and after the last.
pub fn stretches(recording: &Recording) -> Vec<Stretch> {
    let begins: Vec<usize> = causes(recording).into_keys().collect();
    let ends = begins.iter().skip(1).map(|next| next - 1).chain([recording.events.len()]);
    begins.iter().zip(ends).map(|(begin, end)| Stretch { begin: *begin, end }).collect()
}
