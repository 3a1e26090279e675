//! The laboratory: tests of store and filesystem with simulations, power cuts, and failing and slow
//! devices. All in one program, since building each would be slow; `cargo test -p syncline-sim
//! --test laboratory crash::` runs a part.

mod bad_sectors;
mod barrier;
mod canaries;
mod crash;
mod crowded;
mod damaged;
mod faults;
mod full;
mod kept_room;
mod making;
mod mechanisms;
mod nbd;
mod no_room;
mod outages;
mod receipts;
mod resize;
mod rot;
mod scrub;
mod shrink;
mod soak;
mod store_crash;
mod support;
mod time;
mod worlds;
