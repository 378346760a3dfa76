//! What became of the attempts of one call, for whoever learns that it failed.

use std::collections::BTreeMap;

use tonic::Status;
use warren_proto::Problem;
use warren_proto::status::{DISK_FAILS, DISK_FULL};

use crate::error::{Error, UNCONFIRMED, may_have_been_applied};
use crate::link::Link;

/// The attempts of one call.
#[derive(Debug)]
pub(crate) struct Attempts {
    is_write: bool,
    /// The last refusal of each manager, by its address.
    refusals: BTreeMap<String, Problem>,
    /// The address of the last manager that may have applied the write without confirming it.
    unconfirmed: Option<String>,
}

impl Attempts {
    /// None so far, of a call that changes something or not.
    pub fn new(is_write: bool) -> Self {
        Self { is_write, refusals: BTreeMap::new(), unconfirmed: None }
    }

    /// An attempt over `link` ended with `status`. What has no reason no manager said.
    pub fn note(&mut self, link: &Link, status: &Status) {
        // A manager that refuses our certificate has read nothing of the call.
        if link.refusal.get().is_none() && may_have_been_applied(status) {
            self.note_lost(&link.address);
        }
        let problem = Problem::from(status);
        if !problem.reason.is_empty() {
            self.refusals.insert(link.address.to_string(), problem);
        }
    }

    /// An attempt was sent to the manager at `address`, and nobody knows what became of it.
    pub fn note_lost(&mut self, address: &str) {
        if self.is_write {
            self.unconfirmed = Some(address.to_owned());
        }
    }

    /// The end of the call. No later refusal rules out that an unconfirmed attempt was applied: it may be the very
    /// reason for a version conflict.
    pub fn conclude(&self, end: Error) -> Error {
        match &self.unconfirmed {
            Some(address) if !end.is_unconfirmed() => {
                Error::Unconfirmed { address: address.clone(), end: Box::new(end) }
            }
            _ => end,
        }
    }

    /// Whether each of several `managers` has no room on its disk: then there is nobody to wait for.
    pub fn are_all_full(&self, managers: usize) -> bool {
        managers > 1
            && self.refusals.len() >= managers
            && self.refusals.values().all(|said| said.reason == DISK_FULL)
    }

    /// `error`, with what each manager said where several refused and the disk of one of them was the reason. That a
    /// write may have happened stays, whatever was said after it.
    pub fn name_in(&self, error: Error) -> Error {
        let is_of_disk = |said: &Problem| [DISK_FULL, DISK_FAILS].contains(&said.reason.as_str());
        match error {
            Error::Refused { mut problem }
                if problem.reason != UNCONFIRMED
                    && self.refusals.len() > 1
                    && self.refusals.values().any(is_of_disk) =>
            {
                let each = self.refusals.iter().map(|(address, said)| format!("{address}: {}", said.message));
                problem.message = each.collect::<Vec<_>>().join("; ");
                Error::Refused { problem }
            }
            error => error,
        }
    }
}
