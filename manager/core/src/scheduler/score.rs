//! Which of the nodes that fit is best.

use super::view::Candidate;

/// The lesser is the better; fields count in this order, and equals go to the lower node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Tasks of the service that are there and stay. A recent failure of the revision weighs as much as two, so
    /// that a slot that failed on a node tries its luck on one with a task more, but not at any price.
    crowd: u32,
    /// Tasks of all services.
    tasks: u32,
    /// How much of its scarcer resource is reserved, in thousandths.
    load: u32,
}

impl Score {
    pub(super) fn of(candidate: &Candidate<'_>) -> Self {
        let reserved = candidate.usage.reserved;
        let total = candidate.node.description.resources;
        let cpu = thousandths(reserved.cpu.0, total.cpu.0);
        let memory = thousandths(reserved.memory.0, total.memory.0);
        Self {
            crowd: candidate.of_service.saturating_add(candidate.failures.saturating_mul(2)),
            tasks: candidate.usage.tasks,
            load: cpu.max(memory),
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
    fn a_task_of_the_same_service_counts_before_all_else() {
        let score = |crowd, tasks, load| Score { crowd, tasks, load };
        let sorted = [score(0, 9, 900), score(1, 0, 900), score(1, 1, 0), score(1, 1, 1)];
        assert!(sorted.is_sorted());
    }

    #[test]
    fn shares_of_anything_can_be_told() {
        assert_eq!(thousandths(1, 4), 250);
        assert_eq!(thousandths(0, 0), 0);
        assert_eq!(thousandths(u64::MAX, u64::MAX), 1000);
        assert_eq!(thousandths(u64::MAX, 0), u32::MAX);
    }
}
