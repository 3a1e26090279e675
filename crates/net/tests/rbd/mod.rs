//! RBD devices on a real cluster, which the tests start and stop (`tests/ceph/cluster`). Without
//! Ceph's programs they are skipped, with a line that says so.

mod children;
mod cluster;
mod devices;
mod failures;
mod fences;
mod locks;
mod model;
mod records;
