//! Rejects nodes that lack the CPU or memory that the task reserves.

use warren_types::{Bytes, MilliCpu, Resources};

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};

pub(super) struct ResourceFilter;

impl Filter for ResourceFilter {
    fn admits(&self, group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        node.allocation.fits(node.node, group.revision.task.reservations)
    }

    fn explain(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let Resources { cpu, memory } = group.revision.task.reservations;
        let free = refused.iter().map(|node| node.allocation.free(node.node));
        let (no_memory, no_cpu): (Vec<_>, Vec<_>) = free.partition(|free| free.memory < memory);
        let best_memory = no_memory.iter().map(|free| free.memory).max().unwrap_or_default();
        let best_cpu = no_cpu.iter().map(|free| free.cpu).max().unwrap_or(MilliCpu(0));
        let memory = format!("memory (need {memory}, best has {})", round_down(best_memory));
        let cpu = format!("CPU (need {cpu}, best has {best_cpu})");
        let memory = FilterExplanation::new(no_memory.len(), "lacks", "lack", memory);
        memory.into_iter().chain(FilterExplanation::new(no_cpu.len(), "lacks", "lack", cpu)).collect()
    }

    fn remedy(&self, group: &TaskGroup<'_>, _: &[&NodeInfo<'_>]) -> String {
        let name = &group.service.spec.name;
        format!(
            "reserve less (`warren service update {name} --reserve-memory SIZE --reserve-cpus N`) or add a node"
        )
    }
}

/// Rounds down to whole MiB if there are any, for readability: the result never looks sufficient if it is
/// not.
fn round_down(free: Bytes) -> Bytes {
    const MIB: u64 = 1 << 20;
    if free.0 < MIB { free } else { Bytes(free.0 / MIB * MIB) }
}
