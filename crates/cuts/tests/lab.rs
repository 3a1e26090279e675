//! Recordings made with the embedded engine: written, read back, listed, explored and reduced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline::{Filesystem, FormatOptions, ImageOptions};
use syncline_cuts::{
    Case, Cause, Choice, CutsError, Explorer, FILE_VERSION, Info, Judge, MarkKind, Names, Recorder,
    Recording, State, StateOptions, Verdict, describe, load, plan, points, reduce, stretches,
};
use syncline_device::MemoryDevice;
use syncline_powercut::Fate;

static CONTENTS: [u8; 20_000] = [7; 20_000];

/// Runs `work` on a fresh image under a recorder.
fn record(work: impl FnOnce(&Filesystem, &Recorder)) -> Recording {
    let image = MemoryDevice::new(32 << 20);
    syncline::format_device(image.clone(), &FormatOptions::default()).unwrap();
    let fs = Filesystem::open_device(image.clone(), ImageOptions::default()).unwrap();
    fs.create_dir("/old").unwrap();
    fs.write("/old/file", b"was there").unwrap();
    fs.close().unwrap();
    let base = load(image).unwrap();
    let uuid = base.uuid;
    let recorder = Recorder::new(base);
    let fs = Filesystem::open_device(recorder.clone(), ImageOptions::default()).unwrap();
    let begin = recorder.position();
    work(&fs, &recorder);
    let end = recorder.mark(MarkKind::Ended);
    fs.close().unwrap();
    recorder.finish(Info {
        program: "test".into(),
        image: "memory".into(),
        uuid,
        size_bytes: 32 << 20,
        command: vec!["work".into()],
        exit_code: 0,
        started_seconds: 1,
        begin,
        end,
        truncated: false,
    })
}

/// Saves files and reports each; the third without a sync.
fn forgetful(fs: &Filesystem, recorder: &Recorder) {
    for number in 1..=4 {
        let file = fs.create_file(format!("/{number}")).unwrap();
        file.write_all_at(&CONTENTS, 0).unwrap();
        if number != 3 {
            file.sync_all().unwrap();
            recorder.mark(MarkKind::Fsync(fs.metadata(format!("/{number}")).unwrap().ino()));
        }
        recorder.mark(MarkKind::Line(format!("{number}\n").into_bytes()));
    }
}

/// Judges that every reported file is there, complete.
#[derive(Default)]
struct Complete {
    asked: AtomicU64,
}

impl Judge for Complete {
    fn judge(&self, case: &Case<'_>) -> Result<Verdict, CutsError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        for name in String::from_utf8_lossy(case.printed).lines() {
            match case.fs.read(name) {
                Ok(found) if found == CONTENTS => {}
                Ok(found) => return Ok(Verdict::Failed(format!("{name} has {} bytes", found.len()))),
                Err(error) => return Ok(Verdict::Failed(format!("{name}: {error}"))),
            }
        }
        assert_eq!(case.fs.read("/old/file").unwrap(), b"was there");
        Ok(Verdict::Passed)
    }
}

#[test]
fn the_broken_promise_is_found_and_reduced_to_the_moment_it_was_made() {
    let recording = record(forgetful);
    let (judge, stop) = (Complete::default(), AtomicBool::new(false));
    let explorer = Explorer::new(&recording, &judge, &stop);
    let found = explorer.run(&plan(&recording, StateOptions::default()), 2, false).unwrap();
    let (simplest, _) = reduce(&recording, &explorer, &found[0]).unwrap();
    assert!(simplest.output.starts_with("3"), "{simplest:?}");
    assert_eq!(recording.lines_before(simplest.state.position), 3, "right after it was told");
    assert_eq!(simplest.state.missing(), 0, "nothing that was submitted need be lost");
    let cut = recording.cut(simplest.state.position);
    assert!(
        describe(&recording, &simplest.state, &cut).unwrap().iter().all(|write| write.fate == Fate::Kept)
    );
    // All states: only the third file is ever missing, and only until the fourth is synced.
    let explorer = Explorer::new(&recording, &judge, &stop);
    let all = explorer.run(&plan(&recording, StateOptions::default()), 2, true).unwrap();
    assert!(all.iter().all(|failing| failing.output.starts_with("3")), "{all:?}");
    let asked = judge.asked.load(Ordering::Relaxed);
    let states = explorer.counts.states.load(Ordering::Relaxed);
    assert!(asked < states, "{asked} asked for {states} states: trees seen before are left out");
}

#[test]
fn a_program_that_syncs_keeps_its_word_in_every_state() {
    let recording = record(|fs, recorder| {
        for number in 1..=3 {
            let file = fs.create_file(format!("/{number}")).unwrap();
            file.write_all_at(&CONTENTS, 0).unwrap();
            file.sync_all().unwrap();
            recorder.mark(MarkKind::Line(format!("{number}\n").into_bytes()));
        }
    });
    let (judge, stop) = (Complete::default(), AtomicBool::new(false));
    let explorer = Explorer::new(&recording, &judge, &stop);
    let plan = plan(&recording, StateOptions::default());
    assert_eq!(explorer.run(&plan, 2, true).unwrap(), []);
    assert_eq!(explorer.counts.states.load(Ordering::Relaxed), plan.len() as u64);
    assert!(plan.len() > 30, "{}", plan.len());
}

#[test]
fn a_loss_in_the_middle_is_reduced_to_the_one_write() {
    let recording = record(|fs, _| {
        let file = fs.create_file("/a").unwrap();
        // More than a sync logs whole.
        file.write_all_at(&[7; 64 << 10], 0).unwrap();
        file.sync_all().unwrap();
    });
    /// Rejects a log without the data it names: nothing of `/a` may be missing once its batch has
    /// arrived.
    struct NoName;
    impl Judge for NoName {
        fn judge(&self, case: &Case<'_>) -> Result<Verdict, CutsError> {
            let there = case.fs.try_exists("/a")?;
            Ok(if there { Verdict::Passed } else { Verdict::Failed("no /a".into()) })
        }
    }
    let stop = AtomicBool::new(false);
    let explorer = Explorer::new(&recording, &NoName, &stop);
    let stretch = stretches(&recording)[0];
    let cut = recording.cut(stretch.end);
    assert_eq!(cut.open().len(), 2, "data and log, side by side");
    // Data lost but log present, so that the batch does not count.
    let state = State { position: stretch.end, choice: Choice::Fates(vec![Fate::Lost, Fate::Kept]) };
    assert_eq!(explorer.judge_one(&state).unwrap(), Verdict::Failed("no /a".into()));
    let described = describe(&recording, &state, &cut).unwrap();
    assert!(described[0].what.contains("data of /a (blocks 0 to 15)"), "{described:?}");
    assert!(described[1].what.contains("name 'a' in /"), "{described:?}");
    let whole = State { position: stretch.end, choice: Choice::Fates(vec![Fate::Kept, Fate::Kept]) };
    assert_eq!(explorer.judge_one(&whole).unwrap(), Verdict::Passed);
}

#[test]
fn states_are_named_and_found_again_by_their_names() {
    let recording = record(|fs, _| {
        for number in 0..20 {
            fs.create_file(format!("/{number}")).unwrap().write_all_at(&CONTENTS, 0).unwrap();
        }
    });
    let plan = plan(&recording, StateOptions::default());
    assert!(
        plan.iter().any(|planned| matches!(planned.state.choice, Choice::Seed(_))),
        "many writes at once"
    );
    for planned in &plan {
        let name = planned.state.to_string();
        let (state, cut) = State::parse(&name, &recording).unwrap();
        assert_eq!(state, planned.state, "{name}");
        assert_eq!(state.fates(&cut).len(), cut.open().len(), "{name}");
    }
    let most = StateOptions { limit: Some(10), ..StateOptions::default() };
    assert_eq!(self::plan(&recording, most).len(), 10);
}

#[test]
fn points_tell_when_and_why() {
    let recording = record(forgetful);
    let points = points(&recording);
    let mut names = Names::new(&recording).unwrap();
    names.advance(&recording, recording.events.len());
    assert!(points.is_sorted_by_key(|point| point.time_ns));
    let paths: Vec<String> = points
        .iter()
        .flat_map(|point| &point.causes)
        .filter_map(|cause| match cause {
            Cause::Fsync(ino) => Some(names.path(*ino)),
            _ => None,
        })
        .collect();
    assert_eq!(paths, ["/1", "/2", "/4"]);
    assert_eq!(points[0].causes, [Cause::Begin]);
    assert!(points.last().unwrap().causes.contains(&Cause::Unmounted));
    let writes: u64 = points.iter().map(|point| point.writes).sum();
    let all = recording.events[recording.info.begin..].iter();
    assert_eq!(
        writes,
        all.filter(|event| matches!(event, syncline_powercut::Event::Write { .. })).count() as u64
    );
}

#[test]
fn a_recording_reads_back_as_it_was_written() {
    let recording = record(forgetful);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    syncline_cuts::write(&recording, &path).unwrap();
    let read = syncline_cuts::read(&path).unwrap();
    assert_eq!((&read.info, &read.marks), (&recording.info, &recording.marks));
    assert_eq!(read.events.len(), recording.events.len());
    let last = recording.events.len();
    for state in [&format!("{}", recording.info.begin), &format!("{last}")] {
        let image = |recording: &Recording| {
            State::parse(state, recording).unwrap().1.image(&[Fate::Kept; 64]).image()
        };
        assert!(image(&read) == image(&recording), "{state}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no half-written file is left");
    let bytes = std::fs::read(&path).unwrap();
    let distinct = recording.events.len() as u64 * 4096;
    assert!(bytes.len() < 200_000, "equal blocks are stored once: {} for {distinct}", bytes.len());
}

#[test]
fn damaged_recordings_are_refused_whatever_is_damaged() {
    let recording = record(|fs, _| fs.write("/a", b"x").unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    syncline_cuts::write(&recording, &path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for at in (0..24).chain((24..whole.len()).step_by(whole.len() / 50)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        assert!(syncline_cuts::read(&path).is_err(), "byte {at}");
    }
    for len in (0..whole.len()).step_by(whole.len() / 50) {
        std::fs::write(&path, &whole[..len]).unwrap();
        assert!(syncline_cuts::read(&path).is_err(), "{len} bytes");
    }
    let mut newer = whole.clone();
    newer[8] += 1;
    std::fs::write(&path, &newer).unwrap();
    let refused = syncline_cuts::read(&path).map(drop);
    assert!(
        matches!(refused, Err(CutsError::Version { found, .. }) if found == FILE_VERSION + 1),
        "{refused:?}"
    );
}

#[test]
fn contents_that_contradict_themselves_are_refused_even_with_a_right_checksum() {
    let recording = record(|fs, _| fs.write("/a", b"x").unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let refused = |change: &dyn Fn(&mut Recording)| {
        let mut bad = recording.clone();
        change(&mut bad);
        syncline_cuts::write(&bad, &path).unwrap();
        let read = syncline_cuts::read(&path).map(drop);
        assert!(matches!(read, Err(CutsError::Damaged { .. })), "{read:?}");
    };
    use syncline_powercut::Event;
    refused(&|bad| bad.info.size_bytes = 1 << 60);
    refused(&|bad| bad.info.size_bytes = 4096);
    refused(&|bad| bad.info.end = usize::MAX);
    refused(&|bad| {
        bad.marks.push(syncline_cuts::Mark { position: 1 << 40, time_ns: 0, kind: MarkKind::Ended })
    });
    refused(&|bad| bad.events.push(Event::WriteEnded { id: 1 << 40, ok: true }));
    refused(&|bad| bad.events.push(Event::FlushEnded { id: bad.events.len(), ok: true }));
    refused(&|bad| bad.events.push(Event::Discard { offset: u64::MAX - 4095, len_bytes: 4096 }));
    let block = bytes::Bytes::from(vec![1; 4096]);
    refused(&|bad| bad.events.push(Event::Write { offset: 1 << 50, bufs: vec![block.clone()] }));
}

#[test]
fn an_image_in_use_or_with_something_to_recover_is_not_a_start() {
    let image = MemoryDevice::new(32 << 20);
    syncline::format_device(image.clone(), &FormatOptions::default()).unwrap();
    let fs = Filesystem::open_device(image.clone(), ImageOptions::default()).unwrap();
    let cut: Arc<MemoryDevice> = image.snapshot();
    fs.close().unwrap();
    assert!(matches!(load(cut).map(drop), Err(CutsError::NotClean)));
    assert!(load(image).is_ok());
}
