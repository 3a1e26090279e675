//! Carries out a request on the worker that received it: at once if it need not wait, otherwise as
//! a task beside others. The answer leaves from the same CPU either way.

use crate::reply::Reply;
use crate::request::Request;
use crate::serve::Serve;
use crate::session::Session;
use futures_lite::FutureExt;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use syncline_device::Worker;

/// The most requests that one worker has in flight.
const REQUESTS_MAX: usize = 512;
/// The most memory that these requests hold (though one request of any size is let in).
const BYTES_MAX: usize = 64 << 20;

/// The requests that a worker has in flight. Bounded: beyond the limit the worker reads no more
/// requests, and the kernel keeps them.
#[derive(Default)]
pub struct Load {
    requests: Cell<usize>,
    bytes: Cell<usize>,
    waiting: RefCell<Option<Waker>>,
}

impl Load {
    /// True when another request may be taken on.
    pub fn has_room(&self) -> bool {
        self.requests.get() < REQUESTS_MAX && self.bytes.get() < BYTES_MAX
    }

    /// Waits until another request may be taken on.
    pub async fn room(&self) {
        self.until(Self::has_room).await;
    }

    /// Requests in flight, including one that is being answered.
    pub fn requests(&self) -> usize {
        self.requests.get()
    }

    /// Waits until nothing is in flight.
    pub async fn idle(&self) {
        self.until(|load| load.requests.get() == 0).await;
    }

    async fn until(&self, condition: impl Fn(&Self) -> bool) {
        poll_fn(|context| {
            if condition(self) {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Counts a request until the returned value is dropped.
    fn enter(self: &Rc<Self>, bytes: usize) -> Entered {
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        Entered { load: self.clone(), bytes }
    }
}

struct Entered {
    load: Rc<Load>,
    bytes: usize,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.load.requests.set(self.load.requests.get() - 1);
        self.load.bytes.set(self.load.bytes.get() - self.bytes);
        if let Some(waker) = self.load.waiting.take() {
            waker.wake();
        }
    }
}

/// Carries out `request` and calls `answer` with the reply, now or later on this thread.
pub fn carry_out<F: Serve>(
    session: &Arc<Session<F>>,
    load: &Rc<Load>,
    request: Request,
    answer: impl FnOnce(u64, Reply) + 'static,
) {
    let entered = load.enter(request.len_bytes());
    let session = session.clone();
    let mut carried = Box::pin(async move {
        let _entered = entered;
        let reply = guarded(F::serve(&session, &request)).await.unwrap_or_else(|_| {
            let (opcode, ino) = (request.opcode(), request.ino());
            tracing::error!(?opcode, ino, "serving a request panicked; the caller gets EIO");
            Reply::error(libc::EIO)
        });
        let unique = request.unique();
        // This also returns the memory that the request brought for the answer, unless it was
        // taken.
        drop(request);
        answer(unique, reply);
    });
    // The first poll needs no waker: if it does not finish, the task polls again before anything
    // can be missed.
    if carried.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        Worker::current().spawn_local(carried).detach();
    }
}

/// Contains a handler's panic: its caller gets EIO, and nobody else is affected. (Not an `async
/// fn`: its future would have room for the handler twice.)
fn guarded(handler: impl Future<Output = Reply>) -> impl Future<Output = std::thread::Result<Reply>> {
    AssertUnwindSafe(handler).catch_unwind()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use syncline_device::block_on;

    fn is_ready(future: impl Future<Output = ()>) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_panic_is_contained() {
        assert!(block_on(guarded(async { panic!("on purpose") })).is_err());
        assert_eq!(block_on(guarded(async { Reply::error(5) })).unwrap().errno(), 5);
    }

    #[test]
    fn a_guarded_handler_takes_no_more_memory() {
        let handler = async {
            let kept = [1; 1000];
            futures_lite::future::yield_now().await;
            Reply::error(kept[0])
        };
        let bytes = size_of_val(&handler);
        assert!(bytes >= 4000, "{bytes}");
        assert_eq!(size_of_val(&guarded(handler)), bytes);
    }

    #[test]
    fn what_is_under_way_is_bounded() {
        let load = Rc::<Load>::default();
        let mut entered: Vec<_> = (0..REQUESTS_MAX - 1).map(|_| load.enter(10)).collect();
        assert!(is_ready(load.room()) && !is_ready(load.idle()));
        entered.push(load.enter(10));
        assert!(!is_ready(load.room()));
        entered.pop();
        assert!(is_ready(load.room()));
        // One large request is let in, and then no other.
        entered.push(load.enter(2 * BYTES_MAX));
        assert!(!is_ready(load.room()));
        entered.clear();
        assert!(is_ready(load.room()) && is_ready(load.idle()));
    }

    #[test]
    fn whoever_waits_for_room_is_woken() {
        let load = Rc::<Load>::default();
        let entered = load.enter(1);
        let order = RefCell::new(Vec::new());
        let waiting = async {
            load.idle().await;
            order.borrow_mut().push("idle");
        };
        let leaving = async {
            futures_lite::future::yield_now().await;
            order.borrow_mut().push("left");
            drop(entered);
        };
        block_on(futures_lite::future::zip(waiting, leaving));
        assert_eq!(order.into_inner(), ["left", "idle"]);
    }
}
