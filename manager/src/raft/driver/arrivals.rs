//! Snapshots that came from the leader and are durable here, until raft has taken them or has no use for them.

use tokio::sync::oneshot;
use warren_core::State;

/// Index and term of its last entry.
type Place = (u64, u64);

struct Arrival {
    place: Place,
    /// `None` once it is this manager's.
    state: Option<(State, u64)>,
    taken: oneshot::Sender<()>,
    /// The machine was told of it.
    told: bool,
}

/// See the module's text.
#[derive(Default)]
pub struct Arrivals(Vec<Arrival>);

impl Arrivals {
    /// One arrived; the machine will be told next.
    pub fn add(&mut self, place: Place, state: State, bytes: u64, taken: oneshot::Sender<()>) {
        self.0.push(Arrival { place, state: Some((state, bytes)), taken, told: false });
    }

    /// The machine is told of all of them.
    pub fn tell(&mut self) {
        self.0.iter_mut().for_each(|arrival| arrival.told = true);
    }

    /// Raft takes the one that ends there: its state, and how many bytes that took.
    pub fn take(&mut self, place: Place) -> Option<(State, u64)> {
        let arrival = self.0.iter_mut().find(|arrival| arrival.place == place && arrival.state.is_some());
        arrival.and_then(|arrival| arrival.state.take())
    }

    /// Everything that the machine asked for is done.
    pub fn settle(&mut self) {
        for arrival in self.0.extract_if(.., |arrival| arrival.told) {
            // Whoever brought it may have given up waiting.
            let _ = arrival.taken.send(());
        }
    }
}
