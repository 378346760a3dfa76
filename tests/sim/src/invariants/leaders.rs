//! In each term at most one member leads.

use std::collections::BTreeMap;

/// Who led in which term.
#[derive(Debug, Default)]
pub struct Leaders(BTreeMap<u64, u64>);

impl Leaders {
    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// A member says that it leads.
    pub fn elected(&mut self, term: u64, id: u64) -> Result<(), String> {
        match *self.0.entry(term).or_insert(id) {
            first if first == id => Ok(()),
            first => Err(format!("one leader per term: {first} and {id} lead in term {term}")),
        }
    }
}
