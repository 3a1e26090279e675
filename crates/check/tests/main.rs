//! Checks and repairs of damaged images. All in one program, since building the filesystem for each
//! would be slow.

mod common;
mod damage;
mod other_ends;
mod parents;
mod repair;
mod repair_copies;
mod repair_crash;
mod repair_keeps;
mod repair_maps;
mod repair_nodes;
mod repair_shared;
mod rot;
mod scrub;
mod shared_blocks;
mod sound;
mod threads;
