//! What several managers said to one call, for whoever learns that none of them carried it out.

use std::collections::BTreeMap;

use tonic::Status;
use warren_proto::Problem;
use warren_proto::status::{DISK_FAILS, DISK_FULL};

use crate::error::{Error, UNCONFIRMED};

/// The last refusal of each manager, by its address.
#[derive(Debug, Default)]
pub(crate) struct Attempts(BTreeMap<String, Problem>);

impl Attempts {
    /// The manager at `address` ended an attempt with `status`. What has no reason no manager said.
    pub fn note(&mut self, address: &str, status: &Status) {
        let problem = Problem::from(status);
        if !problem.reason.is_empty() {
            self.0.insert(address.to_owned(), problem);
        }
    }

    /// Whether each of several `managers` has no room on its disk: then there is nobody to wait for.
    pub fn are_all_full(&self, managers: usize) -> bool {
        managers > 1 && self.0.len() >= managers && self.0.values().all(|said| said.reason == DISK_FULL)
    }

    /// `error`, with what each manager said where several refused and the disk of one of them was the reason. That a
    /// write may have happened stays, whatever was said after it.
    pub fn name_in(&self, error: Error) -> Error {
        let is_of_disk = |said: &Problem| [DISK_FULL, DISK_FAILS].contains(&said.reason.as_str());
        match error {
            Error::Refused { mut problem }
                if problem.reason != UNCONFIRMED && self.0.len() > 1 && self.0.values().any(is_of_disk) =>
            {
                let each = self.0.iter().map(|(address, said)| format!("{address}: {}", said.message));
                problem.message = each.collect::<Vec<_>>().join("; ");
                Error::Refused { problem }
            }
            error => error,
        }
    }
}
