//! Waiting for several things at once.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Runs all futures to their end, at most `width` at a time, and returns what they returned, in order.
pub(crate) async fn join_all<'a, T, F>(futures: Vec<F>, width: usize) -> Vec<T>
where
    F: Future<Output = T> + Send + 'a,
{
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    let mut waiting = futures.into_iter().enumerate();
    let mut running: Vec<(usize, Boxed<'a, T>)> = Vec::new();
    std::future::poll_fn(|context| {
        loop {
            while running.len() < width
                && let Some((index, future)) = waiting.next()
            {
                running.push((index, Box::pin(future)));
            }
            let before = running.len();
            running.retain_mut(|(index, future)| match future.as_mut().poll(context) {
                Poll::Ready(result) => {
                    results[*index] = Some(result);
                    false
                }
                Poll::Pending => true,
            });
            if running.is_empty() && waiting.len() == 0 {
                return Poll::Ready(());
            }
            if running.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await;
    results.into_iter().map(|result| result.expect("every future ran to its end")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_run_in_order_and_never_too_many_at_once() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let futures: Vec<_> = (0..20)
            .map(|index| {
                let (running, most) = (&running, &most);
                async move {
                    most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    for _ in 0..index % 4 {
                        futures_lite::future::yield_now().await;
                    }
                    running.fetch_sub(1, Ordering::Relaxed);
                    index
                }
            })
            .collect();
        let results = futures_lite::future::block_on(join_all(futures, 3));
        assert_eq!(results, (0..20).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::Relaxed), 3);
    }
}
