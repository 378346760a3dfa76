//! A task goes only where what it reserves is free.

use warren_types::{Bytes, MilliCpu, Resources};

use super::{Candidate, Filter, Group, Phrase};

pub(super) struct FreeResources;

impl Filter for FreeResources {
    fn admits(&self, group: &Group<'_>, node: &Candidate<'_>) -> bool {
        node.usage.fits(node.node, group.revision.task.reservations)
    }

    fn explain(&self, group: &Group<'_>, refused: &[&Candidate<'_>]) -> Vec<Phrase> {
        let Resources { cpu, memory } = group.revision.task.reservations;
        let free = refused.iter().map(|node| node.usage.free(node.node));
        let (no_memory, no_cpu): (Vec<_>, Vec<_>) = free.partition(|free| free.memory < memory);
        let best_memory = no_memory.iter().map(|free| free.memory).max().unwrap_or_default();
        let best_cpu = no_cpu.iter().map(|free| free.cpu).max().unwrap_or(MilliCpu(0));
        let memory = format!("memory (need {memory}, best has {})", rounded(best_memory));
        let cpu = format!("CPU (need {cpu}, best has {best_cpu})");
        let memory = Phrase::of(no_memory.len(), "lacks", "lack", memory);
        memory.into_iter().chain(Phrase::of(no_cpu.len(), "lacks", "lack", cpu)).collect()
    }
}

/// Whole MiB where there are any: nobody reads `3982348288B`. Rounded down, so that it never looks like
/// enough.
fn rounded(free: Bytes) -> Bytes {
    const MIB: u64 = 1 << 20;
    if free.0 < MIB { free } else { Bytes(free.0 / MIB * MIB) }
}
