//! Reads that see everything that was committed when they were asked for.

use crate::{Effect, Machine};

impl Machine {
    pub(super) fn read_index(&mut self, ctx: u64) {
        self.node.read_index(self.read_key(ctx).into());
    }

    pub(super) fn read_ready(&self, read: &raft::ReadState) -> Option<Effect> {
        let ctx = read.request_ctx.last_chunk().map(|ctx| u64::from_le_bytes(*ctx))?;
        let ours = read.request_ctx == self.read_key(ctx);
        ours.then_some(Effect::ReadReady { ctx, index: read.index })
    }

    /// Tells this run's reads from those of other members and of earlier runs, whose answers may
    /// still be on their way.
    fn read_key(&self, ctx: u64) -> [u8; 24] {
        let mut key = [0; 24];
        for (part, value) in key.chunks_exact_mut(8).zip([self.config.id, self.config.seed, ctx]) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        key
    }
}
