//! Election timeouts.
//!
//! The raft crate draws its election timeout from the thread's random numbers. Here it is a function of the
//! seed, the member, its term and its role, set again after every event, so that one seed gives one run.
//! Members differ, and so do the terms of one member: a split vote does not repeat for long.

use std::ops::Range;

use raft::StateRole;

/// Draws election timeouts.
#[derive(Debug, Clone)]
pub(crate) struct ElectionTimeouts {
    seed: u64,
    ticks: Range<usize>,
}

impl ElectionTimeouts {
    /// Timeouts within `ticks`, which must not be empty.
    pub fn new(seed: u64, id: u64, ticks: Range<usize>) -> Self {
        Self { seed: mix(seed ^ mix(id)), ticks }
    }

    /// The timeout in ticks of a member in this term and role.
    pub fn draw(&self, term: u64, role: StateRole) -> usize {
        let spread = self.ticks.len() as u64;
        let drawn = mix(self.seed ^ mix(term.wrapping_mul(4) + role as u64));
        self.ticks.start + (drawn % spread) as usize
    }
}

/// One step of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): distributes its input over all bits.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_cover_exactly_the_range() {
        let timeouts = ElectionTimeouts::new(1, 1, 6..12);
        let mut seen = [false; 12];
        for term in 0..200 {
            seen[timeouts.draw(term, StateRole::Follower)] = true;
        }
        assert_eq!(seen.iter().filter(|seen| **seen).count(), 6);
        assert!(seen[6..].iter().all(|seen| *seen));
    }

    #[test]
    fn timeouts_depend_on_member_seed_and_term() {
        let run = |seed, id| -> Vec<usize> {
            let timeouts = ElectionTimeouts::new(seed, id, 0..1000);
            (0..8).map(|term| timeouts.draw(term, StateRole::Candidate)).collect()
        };
        assert_eq!(run(1, 1), run(1, 1));
        assert_ne!(run(1, 1), run(1, 2));
        assert_ne!(run(1, 1), run(2, 1));
        assert!(run(1, 1).windows(2).any(|pair| pair[0] != pair[1]));
    }
}
