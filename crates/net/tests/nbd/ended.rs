//! A device that is ended from outside, since its host may not use it any more.

use super::*;
use server::command::{FLUSH, WRITE};
use std::sync::Mutex;

fn ends(device: &NbdDevice) {
    device.end(std::io::Error::other("another host has it"));
}

fn assert_ended(result: Result<(), DeviceError>) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains("another host has it"), "{error}");
}

#[test]
fn whoever_waits_for_a_silent_server_is_answered_at_once() {
    let lab = Lab::new(1, Spec::default());
    let device = open_with(&lab, Wait::Forever, NbdOptions::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    let hears = told.clone();
    device.on_broken(move |error| hears.lock().unwrap().push(error.to_string()));
    lab.faults(|faults| faults.stalled = true);
    let (written, flushed) = (write(&device, 0, 1, 4096), flush(&device));
    let gauges = device.counters().now;
    assert_eq!((gauges.in_flight, gauges.in_flight_bytes, gauges.connections), (2, 4096, 4));
    ends(&device);
    ends(&device);
    assert_ended(written.wait());
    assert_ended(flushed.wait());
    assert_ended(write(&device, 0, 1, 4096).wait());
    assert_eq!(*told.lock().unwrap(), ["another host has it"], "once");
    assert!(device.broken().is_some());
    let hears = told.clone();
    device.on_broken(move |error| hears.lock().unwrap().push(error.to_string()));
    assert_eq!(told.lock().unwrap().len(), 2, "who asks later is told at once");
    let gauges = device.counters().now;
    assert_eq!((gauges.in_flight, gauges.in_flight_bytes, gauges.connections), (0, 0, 0));
}

#[test]
fn a_server_that_comes_back_is_not_written_to_any_more() {
    let lab = Lab::new(2, Spec::default());
    let device = open_with(&lab, Wait::Forever, NbdOptions::default());
    write(&device, 0, 1, 4096).wait().unwrap();
    lab.faults(|faults| faults.away = true);
    lab.crash();
    let (written, flushed) = (write(&device, 4096, 1, 4096), flush(&device));
    std::thread::sleep(Duration::from_millis(300));
    assert!(written.result().is_none());
    ends(&device);
    assert_ended(written.wait());
    assert_ended(flushed.wait());
    let sent = lab.count(WRITE);
    lab.faults(|faults| faults.away = false);
    std::thread::sleep(Duration::from_millis(2500));
    assert_ended(flush(&device).wait());
    assert_eq!((lab.count(WRITE), lab.count(FLUSH), device.connections()), (sent, 0, 0));
}
