//! The clients of NBD servers and of Ceph.

mod nbd;
mod rbd;
