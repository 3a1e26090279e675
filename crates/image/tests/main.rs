//! Images on NBD servers, and their leases.

mod lost_leases;
mod slow_servers;
mod support;
mod two_makers;
