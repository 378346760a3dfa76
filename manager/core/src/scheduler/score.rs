//! Which of the suitable nodes is best.

use warren_types::Placement;

use super::view::NodeInfo;

/// Lower is better; fields are compared in this order, and ties go to the lower node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Its taints that no toleration of the service selects: those with the effect PreferNoSchedule, and that it is
    /// not verified for a bootstrap service. Others have kept the task away.
    pub avoided_taints: usize,
    /// Live tasks of the service on the node that stay. A recent failure of the revision counts as two, so
    /// that a slot that failed on a node prefers one with one task more, but not with many more.
    service_tasks: u32,
    /// Live tasks of all services.
    tasks: u32,
    /// How much of its scarcer resource is reserved, in thousandths.
    reserved_thousandths: u32,
    /// Recent failures of the revision on the node.
    pub failures: u32,
}

impl Score {
    pub(super) fn of(placement: &Placement, candidate: &NodeInfo<'_>) -> Self {
        let reserved = candidate.allocation.reserved;
        let total = candidate.node.description.resources;
        let cpu = thousandths(reserved.cpu.0, total.cpu.0);
        let memory = thousandths(reserved.memory.0, total.memory.0);
        let avoided = candidate.node.taints.iter().filter(|taint| !placement.tolerates(taint));
        Self {
            avoided_taints: avoided.count(),
            service_tasks: candidate.service_tasks.saturating_add(candidate.failures.saturating_mul(2)),
            tasks: candidate.allocation.tasks,
            reserved_thousandths: cpu.max(memory),
            failures: candidate.failures,
        }
    }
}

fn thousandths(part: u64, whole: u64) -> u32 {
    let share = u128::from(part) * 1000 / u128::from(whole.max(1));
    u32::try_from(share).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_service_outweigh_other_scores() {
        let score = |avoided, crowd, tasks, load| Score {
            avoided_taints: avoided,
            service_tasks: crowd,
            tasks,
            reserved_thousandths: load,
            failures: 0,
        };
        let sorted = [
            score(0, 0, 9, 900),
            score(0, 1, 0, 900),
            score(0, 1, 1, 0),
            score(0, 1, 1, 1),
            score(1, 0, 0, 0),
            score(2, 0, 0, 0),
        ];
        assert!(sorted.is_sorted());
    }

    #[test]
    fn thousandths_never_overflow() {
        assert_eq!(thousandths(1, 4), 250);
        assert_eq!(thousandths(0, 0), 0);
        assert_eq!(thousandths(u64::MAX, u64::MAX), 1000);
        assert_eq!(thousandths(u64::MAX, 0), u32::MAX);
    }
}
