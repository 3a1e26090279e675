//! What a check finds and a repair mends. One program, since each builds the filesystem anew.

mod common;
mod damage;
mod other_ends;
mod parents;
mod repair;
mod repair_crash;
mod repair_keeps;
mod repair_maps;
mod repair_nodes;
mod repair_shared;
mod scrub;
mod sound;
