//! The lease: a model of several hosts, and the thread that keeps a lease.

mod model;
mod threads;
