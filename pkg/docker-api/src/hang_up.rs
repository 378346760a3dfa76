//! Clients of programs often send no input, and end their half of the connection at once. That they went away shows
//! only in the state of the socket.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::sleep;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(2);

/// Notices that the client closed a connection whole.
#[derive(Debug)]
pub struct HangUp(Option<UnixStream>);

impl HangUp {
    /// For a connection of the socket, by a copy of its handle. Without one nothing is noticed.
    pub fn of(handle: io::Result<OwnedFd>) -> Self {
        let watched = handle.and_then(|handle| UnixStream::from_std(StdStream::from(handle)));
        Self(watched.inspect_err(|error| tracing::warn!(%error, "a connection cannot be watched")).ok())
    }

    /// Returns after the client hung up.
    pub async fn detect(self) {
        let Some(handle) = self.0 else { return std::future::pending().await };
        loop {
            sleep(INTERVAL).await;
            match handle.ready(Interest::WRITABLE).await {
                Ok(found) if !found.is_write_closed() => {}
                _ => return,
            }
        }
    }
}
