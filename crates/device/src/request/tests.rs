//! Partial results, which a test can hardly get from a real kernel.

use super::*;
use crate::oneshot;
use futures_lite::future::block_on;
use std::os::unix::fs::FileExt;

fn open_file(direct: bool) -> Arc<OpenFile> {
    Arc::new(OpenFile {
        file: tempfile::tempfile().unwrap(),
        others: Default::default(),
        direct,
        block_device: false,
        flushes_with_write: false,
        made: false,
    })
}

type Answer<T> = oneshot::Receiver<Result<T, DeviceError>>;

fn completion<T: Send + 'static>() -> (Completion<T>, Answer<T>) {
    let (sender, receiver) = oneshot::channel();
    (Box::new(move |result| sender.send(result)), receiver)
}

fn blocks(fills: &[u8]) -> Vec<Bytes> {
    fills.iter().map(|&fill| Bytes::from(vec![fill; BLOCK_BYTES])).collect()
}

/// Returns the next step, or the operation's outcome if it ended.
fn step<T>(
    request: Request,
    answer: Answer<T>,
    result: io::Result<usize>,
) -> Result<(Request, Answer<T>), Result<T, DeviceError>> {
    match request.advance(result) {
        Step::Again(request) => Ok((request, answer)),
        Step::Finished(finished) => {
            finished.deliver();
            Err(block_on(answer).expect("delivered"))
        }
    }
}

#[test]
fn a_short_write_goes_on_where_it_stopped() {
    let file = open_file(false);
    let (done, answer) = completion();
    let request = Request::write(file.clone(), 4096, blocks(&[1, 2, 3]), done);
    // The kernel took one buffer and part of the next.
    file.file.write_all_at(&[1; 4096], 4096).unwrap();
    file.file.write_all_at(&[2; 100], 8192).unwrap();
    let (request, answer) = step(request, answer, Ok(4196)).unwrap_or_else(|_| panic!("not the end"));
    let (request, answer) =
        step(request, answer, Err(io::ErrorKind::Interrupted.into())).unwrap_or_else(|_| panic!());
    request.run_blocking().deliver();
    block_on(answer).unwrap().unwrap();
    let mut written = vec![0; 4 * 4096];
    file.file.read_exact_at(&mut written, 0).unwrap();
    for (block, fill) in written.chunks(4096).zip([0, 1, 2, 3]) {
        assert!(block.iter().all(|&byte| byte == fill));
    }
}

#[test]
fn direct_io_goes_on_from_a_block_border() {
    let (done, answer) = completion();
    let request = Request::write(open_file(true), 0, blocks(&[1, 2, 3]), done);
    let (request, answer) = step(request, answer, Ok(5000)).unwrap_or_else(|_| panic!("not the end"));
    assert_eq!(request.moved, 4096);
    assert_eq!(request.pieces.next().iter().map(|piece| piece.iov_len).sum::<usize>(), 8192);
    match step(request, answer, Ok(4095)) {
        Err(Err(DeviceError::Io { operation: Operation::Write, source, .. })) => {
            assert_eq!(source.kind(), io::ErrorKind::WriteZero);
        }
        _ => panic!("no block more was written: it can't go on for ever"),
    }
}

#[test]
fn a_read_that_gets_nothing_more_fails() {
    for direct in [false, true] {
        let (done, answer) = completion();
        let request = Request::read(open_file(direct), 0, AlignedBuf::zeroed(8192), done);
        let (request, answer) = step(request, answer, Ok(4096)).unwrap_or_else(|_| panic!("not the end"));
        match step(request, answer, Ok(0)) {
            Err(Err(DeviceError::Io { operation: Operation::Read, source, offset: 0, len_bytes: 8192 })) => {
                assert_eq!(source.kind(), io::ErrorKind::UnexpectedEof);
            }
            _ => panic!("the file has ended"),
        }
    }
}

#[test]
fn an_error_ends_an_operation() {
    let (done, answer) = completion::<()>();
    let request = Request::flush(open_file(false), done);
    match step(request, answer, Err(io::Error::from_raw_os_error(libc::EIO))) {
        Err(Err(DeviceError::Io { operation: Operation::Flush, source, .. })) => {
            assert_eq!(source.raw_os_error(), Some(libc::EIO));
        }
        _ => panic!("a flush that failed has failed"),
    }
}

#[test]
fn crooked_buffers_are_copied_in_runs_and_straight_ones_are_not() {
    let straight = AlignedBuf::copy_from(&[7; 4096]).into_bytes();
    let padded = Bytes::from([vec![0; 16], vec![1; 4096], vec![2; 4096]].concat());
    // An allocator may put the vector anywhere, so find a start that is certainly unaligned.
    let start = if (padded.as_ptr() as usize + 16).is_multiple_of(BLOCK_BYTES) { 8 } else { 16 };
    let (first, second) = (padded.slice(start..start + 4096), padded.slice(start + 4096..start + 8192));
    let bufs = vec![straight.clone(), first.clone(), second.clone(), straight.clone(), first.clone()];
    let bounced = bounce(bufs.clone());
    assert!(bounced.iter().all(is_aligned));
    assert_eq!(bounced.iter().map(Bytes::len).collect::<Vec<_>>(), [4096, 8192, 4096, 4096]);
    assert_eq!(bounced[0].as_ptr(), straight.as_ptr());
    assert_eq!(bounced.concat(), bufs.concat());
}
