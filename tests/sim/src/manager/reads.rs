//! Linearizable reads: the state must contain everything that was acknowledged when the read was requested.

use warren_replica::ReadRoute;

use crate::invariants;
use crate::simulation::ClusterSimulation;

/// How long a reader waits, in milliseconds.
const READ_TIMEOUT: u64 = 5_000;

/// A reader.
#[derive(Debug, Clone, Copy)]
pub struct SimRead {
    /// The newest acknowledged entry at the request.
    acknowledged: u64,
    deadline: u64,
}

impl SimRead {
    pub fn has_left(&self, now: u64) -> bool {
        self.deadline < now
    }
}

impl ClusterSimulation {
    /// A read of everything that is committed now is requested.
    pub(super) fn start_read(&mut self, host: usize) {
        let acknowledged = self.clients.iter().flat_map(|client| client.expected.values());
        let acknowledged = acknowledged.map(|promise| promise.since).max().unwrap_or(0);
        let read = SimRead { acknowledged, deadline: self.now + READ_TIMEOUT };
        let own = self.managers[host].id;
        let Some(run) = &mut self.managers[host].run else { return };
        match run.replica.role().read_route(run.replica.members(), own, None) {
            ReadRoute::Now => self.finish_read(host, read),
            ReadRoute::Round => {
                run.replica.read(read);
                self.wake_driver(host);
            }
            ReadRoute::Fail(_) => {}
        }
    }

    pub(super) fn finish_read(&mut self, host: usize, read: SimRead) {
        let Some(run) = self.process(host) else { return };
        let index = run.replica.applied().index;
        self.reads_answered += 1;
        self.check(invariants::linearizable_reads::holds(read.acknowledged, index));
    }
}
