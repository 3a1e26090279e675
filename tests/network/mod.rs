//! Images that are not on this host, through the binary: an NBD server's exports and RBD images of
//! a real Ceph cluster. A test whose programs are not installed is skipped, with a line that says
//! so.

mod counts;
mod failover;
mod lost;
mod nbd;
mod observed;
mod opened;
mod rbd;
mod synced;
mod tour;
mod unmounted;
mod writers;
