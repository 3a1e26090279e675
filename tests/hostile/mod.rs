//! Bad input of every kind, through the binary: a single line with the cause and the next step, a
//! defined exit code, no panic, no hang, and no loss of acknowledged data.

mod bad_input;
mod devices;
mod disk;
mod escapes;
mod failing;
mod file_sizes;
mod hints;
mod idle;
mod images;
mod limited;
mod locks;
mod memory;
mod mount_points;
mod refused_mounts;
mod repair;
mod slow_flush;
mod unmounting;
mod usage;
mod users;
mod ways;
