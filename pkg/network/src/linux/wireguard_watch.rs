//! Starts WireGuard again when its process ends, at once instead of with the next repair: until then nothing is sent to
//! other nodes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::LinuxInner;

/// Pause after an end, so that a process that cannot run costs little.
const PAUSE: Duration = Duration::from_millis(200);

/// The watch of the process, if there is one. It changes while the node network is locked.
#[derive(Default)]
pub(super) struct WireGuardWatch(Mutex<Option<JoinHandle<()>>>);

impl WireGuardWatch {
    /// A later repair may watch again.
    fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for WireGuardWatch {
    fn drop(&mut self) {
        if let Some(watch) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner) {
            watch.abort();
        }
    }
}

impl LinuxInner {
    fn wants_wireguard(&self) -> bool {
        self.state().network.as_ref().is_some_and(|node| node.settings.wireguard().is_some())
    }

    /// Watches the process unless that is done already. If it cannot be started again, the next repair tries.
    pub(super) fn watch_wireguard(self: &Arc<Self>) {
        let mut watch = self.wireguard_watch.0.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.as_ref().is_some_and(|watch| !watch.is_finished()) || !self.wants_wireguard() {
            return;
        }
        let (inner, socket) = (Arc::downgrade(self), self.wireguard.socket.clone());
        *watch = Some(tokio::spawn(async move {
            let mut connected = UnixStream::connect(&socket).await;
            while let Ok(mut stream) = connected {
                // Nothing is asked, so nothing is answered: it returns at the end of the process.
                let _ = stream.read(&mut [0]).await;
                sleep(PAUSE).await;
                let Some(inner) = inner.upgrade() else { return };
                let _alone = inner.pass_lock.write().await;
                if !inner.wants_wireguard() {
                    return inner.wireguard_watch.end();
                }
                // A repair may have started it meanwhile.
                connected = UnixStream::connect(&socket).await;
                if connected.is_err() {
                    tracing::warn!("the WireGuard process ended; starting it again");
                    super::log_repairs(inner.ensure_node().await);
                    connected = UnixStream::connect(&socket).await;
                }
                if connected.is_err() {
                    return inner.wireguard_watch.end();
                }
            }
        }));
    }
}
