//! How a call can end other than well.

use std::path::PathBuf;
use std::time::Duration;

use tonic::{Code, Status, TimeoutExpired};
use warren_proto::Problem;
use warren_proto::status::{NO_LEADER, OTHER_LIFE};

use crate::dial::DialError;

/// The answer to the removal of what was there `before` it. That there is none says that it is gone: an attempt whose
/// answer was lost removed it, or somebody else did.
pub(crate) fn removed<R>(answer: Result<R, Error>, before: R) -> Result<R, Error> {
    match answer {
        Err(error) if error.is_not_found() => Ok(before),
        answer => answer,
    }
}

/// Reason of a refusal to say whether a write happened.
pub(crate) const UNCONFIRMED: &str = "UNCONFIRMED";

/// Whether a write may have been applied whose attempt ended with this: the answer was lost, or the manager does not
/// know. Any other reason of a manager says what became of it, and a call that found no connection was not sent.
pub(crate) fn may_have_been_applied(status: &Status) -> bool {
    let was_sent = status_source::<DialError>(status).is_none();
    let is_broken = std::error::Error::source(status).is_some()
        || matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled);
    match Problem::from(status).reason.as_str() {
        UNCONFIRMED => true,
        "" => was_sent && is_broken,
        _ => false,
    }
}

/// What went wrong between a person and a manager.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing says which manager to talk to.
    #[error(
        "no cluster context: run `warren manager init` on this machine or pass --manager/--context \
         (looked in {})", file.display()
    )]
    NoContext {
        /// The contexts file that was looked in.
        file: PathBuf,
    },
    /// A context was asked for that the file does not have.
    #[error("there is no context {name:?} in {}; it has: {}", file.display(), listed(known))]
    UnknownContext {
        /// As asked for.
        name: String,
        /// The contexts file.
        file: PathBuf,
        /// What the file has.
        known: Vec<String>,
    },
    /// A manager was named by address, and the context that should identify us has no certificate.
    #[error("context {context:?} has no certificate, which --manager needs; choose another with --context")]
    NoIdentity {
        /// The context.
        context: String,
    },
    /// The contexts file cannot be read, understood or written.
    #[error("cannot {operation} {}: {why}", file.display())]
    ContextsFile {
        /// `read`, `write` ...
        operation: &'static str,
        /// The file.
        file: PathBuf,
        /// Why; without any of the file's text, which may hold a key.
        why: String,
    },
    /// A context's certificate, key or CA is not usable.
    #[error("the certificates of the context cannot be used: {why}")]
    Identity {
        /// What is wrong with them.
        why: String,
    },
    /// Nobody answers.
    #[error("cannot reach the manager at {address}: {why}")]
    Unreachable {
        /// Address or socket.
        address: String,
        /// What the system or the manager said.
        why: String,
    },
    /// Somebody answers, but cannot prove to be a manager of this cluster.
    #[error("{address} did not prove to be a manager of this cluster: {why}")]
    Untrusted {
        /// Address.
        address: String,
        /// What is wrong with its certificate.
        why: String,
    },
    /// The manager, or the system in front of its socket, does not let us.
    #[error("the manager at {address} does not allow it: {why}")]
    Denied {
        /// Address or socket.
        address: String,
        /// Why not.
        why: String,
    },
    /// No answer within the deadline. What was asked may have been done.
    #[error("the manager at {address} did not answer within {after:?}")]
    NoAnswer {
        /// Address or socket.
        address: String,
        /// How long it had.
        after: Duration,
    },
    /// The manager answered that it will not or cannot.
    #[error("{problem}")]
    Refused {
        /// In its words.
        problem: Problem,
    },
    /// A write failed, and an attempt of it that was not confirmed may have been applied all the same.
    #[error("{end}; an attempt at {address} was not confirmed and may have been applied")]
    Unconfirmed {
        /// Address or socket of the manager that the attempt was sent to.
        address: String,
        /// What the last attempt ended with.
        end: Box<Error>,
    },
    /// What the caller gave to be sent could not be read.
    #[error("cannot read what is to be sent: {0}")]
    Input(#[source] std::io::Error),
}

impl Error {
    /// The manager's answer that what was asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Refused { problem } => problem.code == Code::NotFound,
            Self::Unconfirmed { end, .. } => end.is_not_found(),
            _ => false,
        }
    }

    /// A write failed that may have been applied.
    pub fn is_unconfirmed(&self) -> bool {
        match self {
            Self::Refused { problem } => problem.reason == UNCONFIRMED,
            Self::Unconfirmed { .. } => true,
            _ => false,
        }
    }

    /// The managers that answer know of no leader.
    pub fn is_no_leader(&self) -> bool {
        matches!(self, Self::Refused { problem } if problem.reason == NO_LEADER)
    }

    /// Of several attempts, this one says more of how the call ended: a write that may have happened may have happened
    /// whatever came after it, and what one manager says of all is worth more than that another cannot be reached.
    pub(crate) fn outweighs(&self, later: &Self) -> bool {
        let weight = |error: &Self| match error {
            error if error.is_unconfirmed() => 2,
            Self::Refused { problem } if problem.reason == OTHER_LIFE => 1,
            error if error.is_no_leader() => 1,
            _ => 0,
        };
        weight(self) > weight(later)
    }

    /// The end of a call that had `after` for its answer, on a connection that may have been refused.
    pub(crate) fn from_status(
        address: &str,
        after: Duration,
        refusal: Option<String>,
        status: &Status,
    ) -> Self {
        let address = address.to_owned();
        if let Some(dial) = status_source::<DialError>(status) {
            return dial.clone().at(address);
        }
        let problem = Problem::from(status);
        // What no manager said comes from the layers below.
        let from_below = problem.reason.is_empty() && std::error::Error::source(status).is_some();
        match problem.code {
            _ if from_below && status_source::<TimeoutExpired>(status).is_some() => {
                Self::NoAnswer { address, after }
            }
            _ if from_below => broken_connection(address, refusal, status),
            Code::Unauthenticated | Code::PermissionDenied => Self::Denied { address, why: problem.message },
            Code::DeadlineExceeded if problem.reason.is_empty() => Self::NoAnswer { address, after },
            Code::Unavailable if problem.reason.is_empty() => {
                Self::Unreachable { address, why: problem.message }
            }
            _ => Self::Refused { problem },
        }
    }

    /// The end of attempts to connect to all managers there are. What only one of them said is told, if it says more
    /// than that it cannot be reached.
    pub(crate) fn of_all(errors: Vec<Self>) -> Self {
        let (mut addresses, mut reasons) = (Vec::new(), Vec::new());
        let one = errors.len() == 1;
        for error in errors {
            match error {
                Self::Unreachable { address, why } if !one => {
                    reasons.push(format!("{address}: {why}"));
                    addresses.push(address);
                }
                other => return other,
            }
        }
        let none = || "no address is known".to_owned();
        let why = if reasons.is_empty() { none() } else { reasons.join("; ") };
        Self::Unreachable { address: addresses.join(", "), why }
    }

    /// The end of an attempt to connect.
    pub(crate) fn from_connect(
        address: &str,
        refusal: Option<String>,
        error: &(dyn std::error::Error + 'static),
    ) -> Self {
        let address = address.to_owned();
        match chain(error).find_map(|cause| cause.downcast_ref::<DialError>()) {
            Some(dial) => dial.clone().at(address),
            None => broken_connection(address, refusal, error),
        }
    }
}

fn broken_connection(
    address: String,
    refusal: Option<String>,
    error: &(dyn std::error::Error + 'static),
) -> Error {
    if let Some(alert) = refusal {
        return Error::Denied {
            address,
            why: format!("it does not take the context's certificate ({alert})"),
        };
    }
    Error::Unreachable { address, why: innermost(error).unwrap_or_else(|| error.to_string()) }
}

fn status_source<T: std::error::Error + 'static>(status: &Status) -> Option<&T> {
    chain(status).find_map(|cause| cause.downcast_ref())
}

fn chain<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// What the lowest layer said; the layers above only say that the transport failed.
fn innermost(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    chain(error).skip(1).last().map(ToString::to_string)
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
