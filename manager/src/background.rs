//! Background work that outlives the request that started it.

use warren_control::Shutdown;

/// Runs `work` until it ends or the manager stops, which drops it.
pub fn spawn(shutdown: &Shutdown, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    let stop = shutdown.token();
    shutdown.spawn(name, async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = work => {}
        }
    });
}
