//! The fence: asked before anything is written again.

use super::*;
use server::command::WRITE;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use syncline_net::{Fence, ReadBlock};

fn refused() -> DeviceError {
    let source = Arc::new(std::io::Error::other("another host has taken it over"));
    DeviceError::Poisoned { source }
}

#[test]
fn it_reads_the_image_before_anything_is_written_again() {
    let lab = Lab::new(1, Spec::default());
    let device = open(&lab);
    write(&device, 0, 1, 4096).wait().unwrap();
    flush(&device).wait().unwrap();
    write(&device, 4096, 2, 4096).wait().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (seeing, inner) = (seen.clone(), lab.inner.clone());
    device.set_fence(Arc::new(move |image: &mut dyn ReadBlock| -> Result<(), DeviceError> {
        let mut block = [0; 8192];
        image.read_block(0, &mut block)?;
        assert!(image.read_block(1 << 20, &mut block).is_err(), "behind the end");
        let writes = inner.log.lock().unwrap().iter().filter(|(kind, _)| *kind == WRITE).count();
        seeing.lock().unwrap().push((block[0], writes));
        Ok(())
    }));
    lab.crash();
    assert_filled(&device, 4096, 2, 4096);
    assert_eq!(*seen.lock().unwrap(), [(1, 2)]);
    assert_eq!(lab.count(WRITE), 3);
}

#[test]
fn a_host_that_may_not_write_any_more_writes_nothing() {
    let lab = Lab::new(2, Spec::default());
    let device = open(&lab);
    device.set_fence(Arc::new(|_: &mut dyn ReadBlock| Err(refused())));
    write(&device, 0, 1, 4096).wait().unwrap();
    lab.faults(|faults| faults.stalled_command = Some(WRITE));
    let in_flight = write(&device, 4096, 1, 4096);
    eventually("it is at the server", || lab.count(WRITE) == 2);
    lab.crash();
    lab.faults(|faults| faults.stalled_command = None);
    let errors = [
        in_flight.wait().unwrap_err(),
        flush(&device).wait().unwrap_err(),
        write(&device, 0, 1, 4096).wait().unwrap_err(),
    ];
    assert!(
        errors.iter().all(|error| error.to_string().contains("another host has taken it over")),
        "{errors:?}"
    );
    assert!(read(&device, 0, 4096).wait().is_err());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(lab.count(WRITE), 2);
}

/// The connection breaks while the fence reads: that says nothing about who may write.
#[test]
fn a_fence_that_could_not_read_is_asked_again() {
    let lab = Lab::new(3, Spec { flags: server::FLUSH, ..Spec::default() });
    let device = open(&lab);
    let asked = Arc::new(AtomicUsize::new(0));
    let (counting, inner) = (asked.clone(), lab.inner.clone());
    device.set_fence(Arc::new(move |image: &mut dyn ReadBlock| {
        if counting.fetch_add(1, Ordering::SeqCst) < 3 {
            inner.faults.lock().unwrap().cut_sending = Some(10);
        }
        image.read_block(0, &mut [0; 4096])
    }));
    write(&device, 0, 1, 4096).wait().unwrap();
    lab.crash();
    flush(&device).wait().unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 4);
}

/// A fence that a test lets down.
struct Flag(Arc<AtomicBool>);

impl Fence for Flag {
    fn may_write(&self, _: &mut dyn ReadBlock) -> Result<(), DeviceError> {
        Ok(())
    }

    fn may_still_write(&self) -> Result<(), DeviceError> {
        if self.0.load(Ordering::SeqCst) { Ok(()) } else { Err(refused()) }
    }
}

/// A write that waited is only sent if it still may be.
#[test]
fn what_had_to_wait_is_asked_for_again() {
    // Waiting behind a write, and in a replay.
    for replay in [false, true] {
        let lab = Lab::new(4, Spec::default());
        let device = open(&lab);
        let allowed = Arc::new(AtomicBool::new(true));
        device.set_fence(Arc::new(Flag(allowed.clone())));
        write(&device, 0, 1, 4096).wait().unwrap();
        let failed = if replay {
            allowed.store(false, Ordering::SeqCst);
            lab.crash();
            write(&device, 4096, 1, 4096)
        } else {
            lab.faults(|faults| faults.stalled_command = Some(WRITE));
            let first = write(&device, 0, 2, 4096);
            let second = write(&device, 0, 3, 4096);
            allowed.store(false, Ordering::SeqCst);
            lab.faults(|faults| faults.stalled_command = None);
            first.wait().unwrap();
            second
        };
        let error = failed.wait().unwrap_err().to_string();
        assert!(error.contains("another host has taken it over"), "{error}");
        assert_eq!(lab.count(WRITE), if replay { 1 } else { 2 });
    }
}

/// Data that the socket had no room for may be in the client's own queue for any time: while the
/// server takes nothing, or while this process is stopped.
#[test]
fn what_the_socket_had_no_room_for_is_not_sent_when_it_may_not_be_any_more() {
    const LEN: usize = 4 << 20;
    let blocks = Some((512, 4096, LEN as u32));
    let lab = Lab::new(5, Spec { size: 64 << 20, flags: server::FLUSH, blocks, ..Spec::default() });
    let device = open(&lab);
    let allowed = Arc::new(AtomicBool::new(true));
    device.set_fence(Arc::new(Flag(allowed.clone())));
    lab.faults(|faults| faults.stalled_command = Some(WRITE));
    let mut writes: Vec<_> = (0..8).map(|index| write(&device, (index * LEN) as u64, 1, LEN)).collect();
    eventually("the first is at the server, which takes no more", || lab.count(WRITE) == 1);
    allowed.store(false, Ordering::SeqCst);
    lab.faults(|faults| faults.stalled_command = None);
    // The first may have been answered.
    let _ = writes.remove(0).wait();
    for write in writes {
        let error = write.wait().unwrap_err().to_string();
        assert!(error.contains("another host has taken it over"), "{error}");
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(lab.count(WRITE), 1);
}
