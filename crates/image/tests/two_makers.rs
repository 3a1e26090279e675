//! Two hosts that make an image on the same empty export at the same moment.

use crate::support::relay::relay;
use crate::support::{Server, image};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_device::{BLOCK_BYTES, DeviceError, DeviceExt, block_on};
use syncline_image::{How, Image};

/// One looks, and finds nothing. Before it has the lease, the other has made an image and is done.
#[test]
fn who_was_second_does_not_overwrite_what_the_first_has_made() {
    let directory = tempfile::tempdir().unwrap();
    // One connection for each device.
    let socket = directory.path().join("socket");
    let server = Server::start(&socket, &["--filter=multi-conn"], &["multi-conn-mode=disable"]);
    let Some(_server) = server else {
        return eprintln!("skipped: nbdkit is not installed");
    };
    let near = image(&socket);
    let (connections, made) = (Arc::<AtomicUsize>::default(), near.clone());
    // The first connection of the second host is for the look, the next for the lease.
    let far = relay(&socket, move || {
        if connections.fetch_add(1, Ordering::SeqCst) == 1 {
            let first = Image::create(&made, None, false, false, &How::default(), &mut |_| {}).unwrap();
            let block = vec![bytes::Bytes::from(vec![7; BLOCK_BYTES])];
            block_on(first.device().write_at(16 * BLOCK_BYTES as u64, block)).unwrap();
            block_on(first.device().flush_all()).unwrap();
            first.release();
        }
        || false
    });
    let second = Image::create(image(&far), None, false, false, &How::default(), &mut |_| {});
    assert!(matches!(second, Err(DeviceError::NotEmpty { .. })), "it has the image that the first made");
}
