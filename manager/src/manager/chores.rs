//! What a manager does again and again.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rand::RngExt;
use warren_control::{BoxError, Clock, Loops, Queue, RunnerSettings, Shutdown, SystemClock};

use crate::background;
use crate::ca::Keys;
use crate::controllers::key::Key;
use crate::controllers::planner::Planner;
use crate::controllers::wake::{SWEEP, SWEEP_LOOP, Waker};
use crate::session::Registry;
use crate::store::Store;

/// Keys that may wait for the planners; each service has two.
const KEYS: usize = 1 << 16;

/// Renews what this machine shows, in time and while it is shown.
pub(super) fn renew_certificates(
    keys: &Arc<Keys>,
    clock: &Arc<SystemClock>,
    loops: &Loops,
    interval: Duration,
) {
    let (keys, clock, chance) = (keys.clone(), clock.clone(), rand::rng().random());
    loops.spawn("certificates", interval, move || {
        let (keys, now) = (keys.clone(), UNIX_EPOCH + Duration::from_millis(clock.unix_millis()));
        async move {
            let renewed = tokio::task::spawn_blocking(move || keys.renew(now, chance)).await;
            Ok::<(), BoxError>(renewed??)
        }
    });
}

/// Has `planner` look at whatever changes in `store`, and at everything now and then.
pub(super) fn control(
    planner: Planner,
    store: &Store,
    registry: &Registry,
    loops: &Loops,
    shutdown: &Shutdown,
) {
    let queue: Queue<Key> = Queue::new(KEYS);
    let keys = queue.handle();
    let planner = Arc::new(planner);
    loops.spawn_queue("planner", queue, RunnerSettings::default(), move |key| {
        let planner = planner.clone();
        async move { planner.run(key).await }
    });
    let waker = Arc::new(Waker::new(store.clone(), registry.clone(), keys));
    let sweeper = waker.clone();
    loops.spawn(SWEEP_LOOP, SWEEP, move || {
        sweeper.wake_all();
        std::future::ready(Ok::<(), BoxError>(()))
    });
    background::spawn(shutdown, "waker", async move { waker.follow().await });
}
