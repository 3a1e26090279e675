//! The urgent block: a lease is in it, and the mount ends if it is not renewed in time.

use super::*;
use server::command::{FLUSH, READ, WRITE};

/// Where the urgent block is.
const PLACE: u64 = 48 << 12;

fn urgent(options: NbdOptions) -> NbdOptions {
    NbdOptions { urgent: Some(PLACE), ..options }
}

/// A server that takes its time for a flush, while so much is kept that writes wait for it.
#[test]
fn its_writes_do_not_wait_for_room() {
    let lab = Lab::new(1, Spec::default());
    let options = NbdOptions { kept_bytes: 64 << 10, ..NbdOptions::default() };
    let device = open_with(&lab, Wait::Seconds(60), urgent(options));
    lab.faults(|faults| faults.stalled_command = Some(FLUSH));
    let others: Vec<_> = (100..140).map(|index| write(&device, index << 12, 1, BLOCK)).collect();
    eventually("it flushes by itself", || lab.count(FLUSH) == 1);
    for fill in 1..4 {
        write(&device, PLACE, fill, BLOCK).wait().unwrap();
        assert_filled(&device, PLACE, fill, BLOCK);
    }
    assert!(others.last().unwrap().result().is_none(), "the others have room too");
    lab.faults(|faults| faults.stalled_command = None);
    others.into_iter().for_each(|write| write.wait().unwrap());
    lab.crash();
    flush(&device).wait().unwrap();
    assert_filled(&device, PLACE, 3, BLOCK);
}

/// A network that takes seconds to carry the client's queue.
#[test]
fn it_goes_before_all_that_is_not_on_its_way_yet() {
    const LEN: usize = 2 << 20;
    let blocks = Some((512, 4096, LEN as u32));
    let lab = Lab::new(2, Spec { size: 64 << 20, flags: server::FLUSH, blocks, ..Spec::default() });
    let device = open_with(&lab, Wait::Seconds(60), urgent(NbdOptions::default()));
    lab.faults(|faults| faults.stalled_command = Some(WRITE));
    let others: Vec<_> = (1..16).map(|index| write(&device, (index * LEN) as u64, 1, LEN)).collect();
    eventually("the first is at the server, which takes no more", || lab.count(WRITE) == 1);
    // As a renewal: it is read, and written.
    let (asked, written) = (read(&device, PLACE, BLOCK), write(&device, PLACE, 7, BLOCK));
    lab.faults(|faults| faults.stalled_command = None);
    asked.wait().unwrap();
    written.wait().unwrap();
    others.into_iter().for_each(|write| write.wait().unwrap());
    let log = lab.inner.log.lock().unwrap().clone();
    let place = log.iter().position(|(kind, _)| *kind == READ).unwrap();
    assert!(place <= 3, "{place} requests went before it");
    drop(log);
    assert_filled(&device, PLACE, 7, BLOCK);
}
