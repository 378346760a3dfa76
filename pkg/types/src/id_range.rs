//! The ids of the node that the users and groups of a container with a user namespace of its own have.

/// How many ids a user namespace has: as many as programs expect.
pub const ID_RANGE_SIZE: u32 = 65_536;
/// What the kernel shows for an id that a user namespace does not have.
const OVERFLOW_ID: u32 = 65_534;

/// The ids of one user namespace on its node: [`ID_RANGE_SIZE`] from the first on. They are those of users and of
/// groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdRange {
    /// The id on the node of id 0 in the container.
    pub first: u32,
}

impl IdRange {
    /// The id on the node of an id in the container; `None` if the container has no such id.
    pub fn on_node(self, id: u32) -> Option<u32> {
        (id < ID_RANGE_SIZE).then(|| self.first.checked_add(id)).flatten()
    }

    /// How the container sees an id of the node.
    pub fn in_container(self, id: u32) -> u32 {
        id.checked_sub(self.first).filter(|id| *id < ID_RANGE_SIZE).unwrap_or(OVERFLOW_ID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_shifted_within_the_range() {
        let range = IdRange { first: 1_000_000 };
        for (id, on_node) in
            [(0, Some(1_000_000)), (65_535, Some(1_065_535)), (65_536, None), (u32::MAX, None)]
        {
            assert_eq!(range.on_node(id), on_node, "{id}");
        }
        for (on_node, id) in
            [(1_000_000, 0), (1_000_999, 999), (0, 65_534), (999_999, 65_534), (1_065_536, 65_534)]
        {
            assert_eq!(range.in_container(on_node), id, "{on_node}");
        }
        assert_eq!(IdRange { first: u32::MAX }.on_node(1), None);
    }
}
