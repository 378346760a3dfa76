//! Collects the results of the attempts of a call, for its error.

use std::collections::BTreeMap;

use tonic::Status;
use warren_proto::Problem;
use warren_proto::status::{DISK_FAILED, DISK_FULL};

use crate::channel::ManagerChannel;
use crate::error::{Error, UNCONFIRMED, may_have_been_applied};

/// The attempts of one call.
#[derive(Debug)]
pub(crate) struct ManagerRefusals {
    is_write: bool,
    /// The last refusal of each manager, by its address.
    refusals: BTreeMap<String, Problem>,
    /// Address of the last manager that may have applied the write without a confirmation.
    unconfirmed: Option<String>,
}

impl ManagerRefusals {
    /// No attempts yet; `is_write` if the call is a write.
    pub fn new(is_write: bool) -> Self {
        Self { is_write, refusals: BTreeMap::new(), unconfirmed: None }
    }

    /// Records the end of an attempt. A status without a reason code comes from the transport.
    pub fn record(&mut self, link: &ManagerChannel, status: &Status) {
        // A manager that rejects the certificate has not read the request.
        if link.tls_alert.get().is_none() && may_have_been_applied(status) {
            self.note_lost(&link.address);
        }
        let problem = Problem::from(status);
        if !problem.reason.is_empty() {
            self.refusals.insert(link.address.to_string(), problem);
        }
    }

    /// Records an attempt with an unknown result.
    pub fn note_lost(&mut self, address: &str) {
        if self.is_write {
            self.unconfirmed = Some(address.to_owned());
        }
    }

    /// The error of the call. A later refusal does not rule out that an unconfirmed attempt was applied: that may be
    /// the cause of a version conflict.
    pub fn conclude(&self, end: Error) -> Error {
        match &self.unconfirmed {
            Some(address) if !end.is_unconfirmed() => {
                Error::Unconfirmed { address: address.clone(), end: Box::new(end) }
            }
            _ => end,
        }
    }

    /// Whether the disks of all `managers` are full: then waiting does not help.
    pub fn are_all_disks_full(&self, managers: usize) -> bool {
        managers > 1
            && self.refusals.len() >= managers
            && self.refusals.values().all(|problem| problem.reason == DISK_FULL)
    }

    /// `error` with the message of each manager if several refused and one of them because of its disk. An unconfirmed
    /// write stays unconfirmed.
    pub fn annotate(&self, error: Error) -> Error {
        let is_of_disk = |problem: &Problem| [DISK_FULL, DISK_FAILED].contains(&problem.reason.as_str());
        match error {
            Error::Refused { mut problem }
                if problem.reason != UNCONFIRMED
                    && self.refusals.len() > 1
                    && self.refusals.values().any(is_of_disk) =>
            {
                let each =
                    self.refusals.iter().map(|(address, problem)| format!("{address}: {}", problem.message));
                problem.message = each.collect::<Vec<_>>().join("; ");
                Error::Refused { problem }
            }
            error => error,
        }
    }
}
