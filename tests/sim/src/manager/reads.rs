//! Linearizable reads: the index that must be applied to see everything that is committed now.

use warren_consensus::Event as RaftEvent;

use crate::invariants;
use crate::simulation::ClusterSimulation;

impl ClusterSimulation {
    /// A read of everything that is committed now is requested.
    pub(super) fn start_read(&mut self, host: usize) {
        let acknowledged = self.clients.iter().flat_map(|client| client.expected.values());
        let newest = acknowledged.map(|promise| promise.since).max().unwrap_or(0);
        let Some(run) = &mut self.managers[host].run else { return };
        let ctx = run.writes.number();
        run.reads.insert(ctx, newest);
        self.raft(host, RaftEvent::ReadIndex { ctx });
    }

    pub(super) fn finish_read(&mut self, host: usize, ctx: u64, index: u64) {
        let Some(run) = &mut self.managers[host].run else { return };
        if let Some(acknowledged) = run.reads.remove(&ctx) {
            self.reads_answered += 1;
            self.check(invariants::linearizable_reads::holds(acknowledged, index));
        }
    }
}
