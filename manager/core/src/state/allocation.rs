//! Whether a node has room. Used by the scheduler's filters and again when an assignment is applied.

use warren_types::{Bytes, MilliCpu, Node, Resources};

/// What is allocated on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeAllocation {
    /// Sum of the reservations of tasks that hold the node and are not terminal.
    pub reserved: Resources,
    /// How many tasks hold the node; each has an address.
    pub tasks: u32,
    /// How many addresses of earlier tasks are not assigned again yet.
    pub withdrawn: u32,
}

impl NodeAllocation {
    /// What can still be reserved. Zero if a node has shrunk below its reservations.
    pub fn free(&self, node: &Node) -> Resources {
        let total = node.description.resources;
        Resources {
            cpu: MilliCpu(total.cpu.0.saturating_sub(self.reserved.cpu.0)),
            memory: Bytes(total.memory.0.saturating_sub(self.reserved.memory.0)),
        }
    }

    /// Whether `desired` can be reserved.
    pub fn fits(&self, node: &Node, desired: Resources) -> bool {
        let free = self.free(node);
        desired.cpu <= free.cpu && desired.memory <= free.memory
    }

    /// Allocates `reserved` for a task. Sums of what fits cannot overflow; those of a damaged snapshot can,
    /// and are detected by the invariants, so the arithmetic only has to be reversible.
    pub(crate) fn allocate(&mut self, reserved: Resources) {
        self.reserved.cpu.0 = self.reserved.cpu.0.wrapping_add(reserved.cpu.0);
        self.reserved.memory.0 = self.reserved.memory.0.wrapping_add(reserved.memory.0);
    }

    pub(crate) fn release(&mut self, reserved: Resources) {
        self.reserved.cpu.0 = self.reserved.cpu.0.wrapping_sub(reserved.cpu.0);
        self.reserved.memory.0 = self.reserved.memory.0.wrapping_sub(reserved.memory.0);
    }
}
