//! The interface between the transports and the meaning of requests.

use crate::operations;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::Filesystem;

/// A filesystem that can be mounted: it implements requests, whichever way they come.
pub trait Serve: Send + Sync + Sized + 'static {
    /// Carries out `request` and returns its answer. Once begun it is polled to its end, on one
    /// thread.
    fn serve(session: &Session<Self>, request: &Request) -> impl Future<Output = Reply>;
}

impl Serve for Filesystem {
    fn serve(session: &Session, request: &Request) -> impl Future<Output = Reply> {
        operations::serve(session, request)
    }
}
