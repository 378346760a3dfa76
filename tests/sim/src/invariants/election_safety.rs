//! Each term has at most one leader.

use std::collections::BTreeMap;

/// The leader of each term.
#[derive(Debug, Default)]
pub struct TermLeaders(BTreeMap<u64, u64>);

impl TermLeaders {
    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// A member reports that it leads.
    pub fn record(&mut self, term: u64, id: u64) -> Result<(), String> {
        match *self.0.entry(term).or_insert(id) {
            first if first == id => Ok(()),
            first => Err(format!("one leader per term: {first} and {id} lead in term {term}")),
        }
    }
}
