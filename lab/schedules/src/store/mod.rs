//! The store by itself: a few tasks that write, name, free, sync, and make checkpoints and
//! snapshots; and power cuts.

mod base;
mod history;
mod judge;
mod setup;
mod task;

pub use setup::Setup;

use crate::control::Control;
use crate::time::Time;
use history::History;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use setup::Laboratory;
use std::sync::Arc;
use syncline_store::Canary;
use syncline_sync::block_on;

/// Makes the image that every life starts from; must be called before the first life.
pub fn prepare() {
    base::make();
}

/// Runs one life, with a rule broken if there is a `canary`.
pub fn live(control: &Arc<Control>, canary: Option<Canary>) {
    live_as(control, |setup| Setup { canary, ..setup });
}

/// Like `live`, with a changed setup.
pub fn live_as(control: &Arc<Control>, change: impl FnOnce(Setup) -> Setup) {
    let time = Time::start();
    let mut rng = ChaCha8Rng::seed_from_u64(control.seed());
    let setup = change(Setup::of(&mut rng));
    block_on(async {
        let laboratory = Laboratory::open(setup, &time, &mut rng).await;
        let history = Arc::new(History::beginning());
        control.quiet(false);
        let tasks: Vec<_> = (0..setup.tasks)
            .map(|index| {
                let seed = rng.random();
                shuttle::future::spawn(task::run(laboratory.clone(), history.clone(), index, seed))
            })
            .collect();
        for task in tasks {
            task.await.expect("nobody ends a task");
        }
        control.quiet(true);
        judge::judge(control, &laboratory, &history, &mut rng).await;
        time.settle().await;
        control.mix(u64::from(laboratory.recording.digest()));
    });
}
