//! Exit codes of containers that were removed because they ended: clients wait for the code and for the removal.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Maximum number of codes that are kept; the oldest is dropped first.
const MAX_CODES: usize = 1024;

/// The newest exit codes, by the id of the service.
#[derive(Debug, Default)]
pub struct ExitCodes(Mutex<VecDeque<(String, i32)>>);

impl ExitCodes {
    /// Keeps the code of a container that is removed next.
    pub fn keep(&self, service_id: &str, code: i32) {
        let mut codes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        codes.push_back((service_id.to_owned(), code));
        if codes.len() > MAX_CODES {
            codes.pop_front();
        }
    }

    /// The code of a container that this server removed.
    pub fn get(&self, service_id: &str) -> Option<i32> {
        let codes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        codes.iter().rev().find(|(id, _)| id == service_id).map(|(_, code)| *code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_codes_are_kept() {
        let codes = ExitCodes::default();
        for number in 0..=MAX_CODES {
            codes.keep(&number.to_string(), i32::try_from(number).unwrap());
        }
        codes.keep("7", 9);
        assert_eq!(
            [codes.get("0"), codes.get("7"), codes.get("1024"), codes.get("x")],
            [None, Some(9), Some(1024), None]
        );
    }
}
