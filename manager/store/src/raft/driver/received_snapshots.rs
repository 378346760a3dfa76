//! Snapshots received from the leader that are durable here, until raft installs or discards them.

use tokio::sync::oneshot;
use warren_core::State;

/// Index and term of its last entry.
type SnapshotPosition = (u64, u64);

struct ReceivedSnapshot {
    position: SnapshotPosition,
    /// `None` after it was installed.
    state: Option<(State, u64)>,
    settled: oneshot::Sender<()>,
    /// Whether the machine has received its message.
    is_announced: bool,
}

/// See the module documentation.
#[derive(Default)]
pub struct ReceivedSnapshots(Vec<ReceivedSnapshot>);

impl ReceivedSnapshots {
    /// Adds a snapshot whose message the machine receives next.
    pub fn add(
        &mut self,
        position: SnapshotPosition,
        state: State,
        bytes: u64,
        settled: oneshot::Sender<()>,
    ) {
        self.0.push(ReceivedSnapshot { position, state: Some((state, bytes)), settled, is_announced: false });
    }

    /// Marks all snapshots as announced to the machine.
    pub fn mark_announced(&mut self) {
        self.0.iter_mut().for_each(|snapshot| snapshot.is_announced = true);
    }

    /// Takes the state that ends at `position`, and its size in bytes, for installation.
    pub fn take(&mut self, position: SnapshotPosition) -> Option<(State, u64)> {
        let snapshot =
            self.0.iter_mut().find(|snapshot| snapshot.position == position && snapshot.state.is_some());
        snapshot.and_then(|snapshot| snapshot.state.take())
    }

    /// Releases the announced snapshots after all effects were executed.
    pub fn release_announced(&mut self) {
        for snapshot in self.0.extract_if(.., |snapshot| snapshot.is_announced) {
            // The receiver may be gone.
            let _ = snapshot.settled.send(());
        }
    }
}
