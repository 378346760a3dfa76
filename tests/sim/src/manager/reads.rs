//! Reads through raft: up to where must be applied what is to see everything that is committed by now.

use warren_consensus::Event as RaftEvent;

use crate::invariants;
use crate::world::World;

impl World {
    /// Somebody wants to read what is committed by now.
    pub(super) fn reads(&mut self, host: usize) {
        let acknowledged = self.clients.iter().flat_map(|client| client.promises.values());
        let newest = acknowledged.map(|promise| promise.since).max().unwrap_or(0);
        let Some(run) = &mut self.managers[host].run else { return };
        let ctx = run.writing.number();
        run.reads.insert(ctx, newest);
        self.raft(host, RaftEvent::ReadIndex { ctx });
    }

    pub(super) fn read_is_ready(&mut self, host: usize, ctx: u64, index: u64) {
        let Some(run) = &mut self.managers[host].run else { return };
        if let Some(acknowledged) = run.reads.remove(&ctx) {
            self.reads_answered += 1;
            self.demand(invariants::reads::holds(acknowledged, index));
        }
    }
}
