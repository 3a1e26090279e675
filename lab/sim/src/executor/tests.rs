use super::*;
use futures_lite::future::yield_now;

fn order(seed: u64) -> Vec<u32> {
    let simulation = Simulation::new(seed);
    let spawner = simulation.spawner();
    let order = Arc::new(Mutex::new(Vec::new()));
    for task in 0..5 {
        let order = order.clone();
        spawner.spawn(Box::pin(async move {
            for _ in 0..4 {
                order.lock().push(task);
                yield_now().await;
            }
        }));
    }
    let sleep = spawner.sleep(Duration::from_secs(5));
    simulation.run(sleep).unwrap();
    assert!(simulation.now_ns() >= 5_000_000_000);
    order.lock().clone()
}

#[test]
fn a_seed_is_an_order_of_tasks() {
    assert_eq!(order(1), order(1));
    assert_eq!(order(1).len(), 20);
    assert!((2..10).any(|seed| order(seed) != order(1)));
}

#[test]
fn the_time_of_day_is_set_both_ways_and_uptime_is_not() {
    let (mut forward, mut back) = (0, 0);
    for seed in 0..20 {
        let simulation = Simulation::new(seed);
        let clock = simulation.clock();
        for second in 1..=20 {
            let before = clock.now();
            simulation.run(simulation.spawner().sleep(Duration::from_secs(1))).unwrap();
            forward += u32::from(clock.now().seconds > before.seconds + 2);
            back += u32::from(clock.now() < before);
            assert!(clock.uptime() >= Duration::from_secs(second));
            assert!(clock.uptime() < Duration::from_secs(second) + Duration::from_millis(1));
        }
    }
    assert!(forward > 50 && back > 50, "{forward} and {back} times");
}

#[test]
fn a_wait_that_cannot_end_is_noticed() {
    let simulation = Simulation::new(1);
    assert_eq!(simulation.run(std::future::pending::<()>()), Err(Stalled::Stuck));
}

#[test]
fn a_sleep_dropped_leaves_no_timer() {
    let simulation = Simulation::new(1);
    let spawner = simulation.spawner();
    simulation
        .run(async move {
            let long = spawner.sleep(Duration::from_secs(100));
            futures_lite::future::or(long, spawner.sleep(Duration::from_secs(1))).await;
        })
        .unwrap();
    assert!(simulation.now_ns() < 2_000_000_000);
    assert!(simulation.shared.state.lock().timers.is_empty());
}

#[test]
fn wakes_that_are_late_take_time_and_are_counted_once() {
    let simulation = Simulation::new(1);
    simulation.let_tasks_run_late(true);
    simulation.spawner().spawn(Box::pin(async {
        for _ in 0..20 {
            yield_now().await;
        }
    }));
    let sleep = simulation.spawner().sleep(Duration::from_secs(300));
    simulation.run(sleep).unwrap();
    assert!(simulation.is_at_rest());
    simulation.let_tasks_run_late(false);
    let wakes = simulation.take_wakes();
    assert_eq!((wakes.started, wakes.total), (2, 0), "both have ended");
    let spawner = simulation.spawner();
    simulation.spawner().spawn(Box::pin(async move {
        for _ in 0..5 {
            spawner.sleep(Duration::from_secs(1)).await;
        }
        std::future::pending::<()>().await;
    }));
    simulation.run(simulation.spawner().sleep(Duration::from_secs(60))).unwrap();
    // Once at the start, and once after each sleep.
    assert_eq!(simulation.take_wakes(), Wakes { most: 6, total: 6, started: 2 });
    assert_eq!(simulation.take_wakes(), Wakes::default());
}

#[test]
fn a_task_may_wake_itself_and_end() {
    let simulation = Simulation::new(1);
    let ended = std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        std::task::Poll::Ready(())
    });
    simulation.spawner().spawn(Box::pin(ended));
    assert!(!simulation.run_steps(10));
}
