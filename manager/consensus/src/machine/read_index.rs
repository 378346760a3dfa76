//! Reads that observe everything that was committed when they were requested.

use crate::{Effect, RaftMachine};

impl RaftMachine {
    pub(super) fn read_index(&mut self, ctx: u64) {
        self.node.read_index(self.read_context(ctx).into());
    }

    pub(super) fn read_ready(&self, read: &raft::ReadState) -> Option<Effect> {
        let ctx = read.request_ctx.last_chunk().map(|ctx| u64::from_le_bytes(*ctx))?;
        let ours = read.request_ctx == self.read_context(ctx);
        ours.then_some(Effect::ReadReady { ctx, index: read.index })
    }

    /// Distinguishes this run's reads from those of other members and of earlier runs, whose responses may
    /// still arrive.
    fn read_context(&self, ctx: u64) -> [u8; 24] {
        let mut key = [0; 24];
        for (part, value) in key.chunks_exact_mut(8).zip([self.config.id, self.config.seed, ctx]) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        key
    }
}
