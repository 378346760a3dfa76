//! Whether a node has room. The scheduler's filters and the second look when a placement is applied both
//! ask here.

use warren_types::{Bytes, MilliCpu, Node, Resources};

/// What is taken of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Sum of the reservations of tasks that hold the node and have not ended.
    pub reserved: Resources,
    /// How many tasks hold the node; each has an address.
    pub tasks: u32,
}

impl Usage {
    /// What can still be reserved. Zero where a node has shrunk below what was promised.
    pub fn free(&self, node: &Node) -> Resources {
        let total = node.description.resources;
        Resources {
            cpu: MilliCpu(total.cpu.0.saturating_sub(self.reserved.cpu.0)),
            memory: Bytes(total.memory.0.saturating_sub(self.reserved.memory.0)),
        }
    }

    /// Whether `wanted` can be reserved.
    pub fn fits(&self, node: &Node, wanted: Resources) -> bool {
        let free = self.free(node);
        wanted.cpu <= free.cpu && wanted.memory <= free.memory
    }

    /// Takes `reserved` for a task. Sums of what fits cannot overflow; what a damaged snapshot says
    /// can, and is found by the invariants, so the arithmetic only has to be reversible.
    pub(crate) fn take(&mut self, reserved: Resources) {
        self.reserved.cpu.0 = self.reserved.cpu.0.wrapping_add(reserved.cpu.0);
        self.reserved.memory.0 = self.reserved.memory.0.wrapping_add(reserved.memory.0);
    }

    pub(crate) fn give_back(&mut self, reserved: Resources) {
        self.reserved.cpu.0 = self.reserved.cpu.0.wrapping_sub(reserved.cpu.0);
        self.reserved.memory.0 = self.reserved.memory.0.wrapping_sub(reserved.memory.0);
    }
}
