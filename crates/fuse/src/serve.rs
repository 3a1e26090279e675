//! What stands between the transports and what requests mean.

use crate::operations;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::Session;
use syncline_fs::Filesystem;

/// What can be mounted: it says what requests mean, however they come.
pub trait Serve: Send + Sync + Sized + 'static {
    /// Carries out `request` and gives its answer. Once begun it is polled to its end, on one thread.
    fn serve(session: &Session<Self>, request: &Request) -> impl Future<Output = Reply>;
}

impl Serve for Filesystem {
    fn serve(session: &Session, request: &Request) -> impl Future<Output = Reply> {
        operations::serve(session, request)
    }
}
