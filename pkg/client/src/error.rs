//! Errors of calls.

use std::path::PathBuf;
use std::time::Duration;

use tonic::{Code, Status, TimeoutExpired};
use warren_proto::Problem;
use warren_proto::status::{NO_LEADER, OTHER_INCARNATION};

/// The result of a removal. `NOT_FOUND` counts as success with the object from `before`: an earlier attempt whose
/// response was lost, or another client, removed it.
pub(crate) fn accept_absent<R>(answer: Result<R, Error>, before: R) -> Result<R, Error> {
    match answer {
        Err(error) if error.is_not_found() => Ok(before),
        answer => answer,
    }
}

/// Reason code of a manager that does not know whether a write was applied.
pub(crate) const UNCONFIRMED: &str = "UNCONFIRMED";

/// The TLS alert of a manager to which the certificate has expired.
const EXPIRED_ALERT: &str = "CertificateExpired";
/// That of one to which it is revoked.
const REVOKED_ALERT: &str = "CertificateRevoked";

/// Whether an attempt of a write that ended with this may have been applied: the response was lost, or the manager does
/// not know. Other reason codes are definite, and a call without a connection was not sent.
pub(crate) fn may_have_been_applied(status: &Status) -> bool {
    let was_sent = status_source::<ClientDialError>(status).is_none();
    let is_broken = std::error::Error::source(status).is_some()
        || matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled);
    match Problem::from(status).reason.as_str() {
        UNCONFIRMED => true,
        "" => was_sent && is_broken,
        _ => false,
    }
}

/// Whether a manager ended the call at its deadline, which it learns from the request.
pub(crate) fn has_expired(status: &Status) -> bool {
    matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled)
        && Problem::from(status).reason.is_empty()
        && std::error::Error::source(status).is_none()
}

/// Error of a call, or of connecting to a manager.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No context, address or socket selects a manager.
    #[error(
        "no cluster context: run `warren manager init` on this machine or pass --manager/--context \
         (looked in {})", file.display()
    )]
    NoContext {
        /// The contexts file.
        file: PathBuf,
    },
    /// The requested context does not exist.
    #[error("there is no context {name:?} in {}; it has: {}", file.display(), listed(known))]
    UnknownContext {
        /// Requested name.
        name: String,
        /// The contexts file.
        file: PathBuf,
        /// Existing contexts.
        known: Vec<String>,
    },
    /// A manager address was given, and the context has no certificate to authenticate with.
    #[error("context {context:?} has no certificate, which --manager needs; choose another with --context")]
    NoIdentity {
        /// Name of the context.
        context: String,
    },
    /// The contexts file cannot be read, parsed or written.
    #[error("cannot {operation} {}: {why}", file.display())]
    ContextsFile {
        /// `read`, `write` ...
        operation: &'static str,
        /// The file.
        file: PathBuf,
        /// The error, without text of the file, which may contain a key.
        why: String,
    },
    /// The certificate, key or CA of a context is invalid.
    #[error("the certificates of the context cannot be used: {why}")]
    Identity {
        /// The error.
        why: String,
    },
    /// No connection to the manager.
    #[error("cannot reach the manager at {address}: {why}")]
    Unreachable {
        /// Address or socket.
        address: String,
        /// Error of the system or of the manager.
        why: String,
    },
    /// The server has no certificate of a manager of this cluster.
    #[error("{address} has no certificate of a manager of this cluster: {why}")]
    Untrusted {
        /// Address.
        address: String,
        /// Error of the certificate.
        why: String,
    },
    /// The manager, or the permissions of its socket, denied the request.
    #[error("the manager at {address} denied the request: {why}")]
    Denied {
        /// Address or socket.
        address: String,
        /// Reason.
        why: String,
    },
    /// No response within the deadline. The request may have been applied.
    #[error("the manager at {address} did not answer within {after:?}")]
    NoAnswer {
        /// Address or socket.
        address: String,
        /// The deadline.
        after: Duration,
    },
    /// The manager refused the request.
    #[error("{problem}")]
    Refused {
        /// Reason code, message and violations from the manager.
        problem: Problem,
    },
    /// A write failed, but an unconfirmed attempt of it may have been applied.
    #[error("{end}; an attempt at {address} was not confirmed and may have been applied")]
    Unconfirmed {
        /// Address or socket of the manager that the attempt was sent to.
        address: String,
        /// Error of the last attempt.
        end: Box<Error>,
    },
    /// The input of the caller could not be read.
    #[error("cannot read the input: {0}")]
    Input(#[source] std::io::Error),
}

impl Error {
    /// Whether the manager reported that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Refused { problem } => problem.code == Code::NotFound,
            Self::Unconfirmed { end, .. } => end.is_not_found(),
            _ => false,
        }
    }

    /// Whether the manager reported that there is an object of that name.
    pub fn is_already_exists(&self) -> bool {
        match self {
            Self::Refused { problem } => problem.code == Code::AlreadyExists,
            Self::Unconfirmed { end, .. } => end.is_already_exists(),
            _ => false,
        }
    }

    /// Whether the failed write may have been applied.
    pub fn is_unconfirmed(&self) -> bool {
        match self {
            Self::Refused { problem } => problem.reason == UNCONFIRMED,
            Self::Unconfirmed { .. } => true,
            _ => false,
        }
    }

    /// Whether the responding managers have no leader.
    pub fn is_no_leader(&self) -> bool {
        matches!(self, Self::Refused { problem } if problem.reason == NO_LEADER)
    }

    /// Whether this error of an attempt is reported instead of another one: an unconfirmed write stays unconfirmed,
    /// and a response of a manager is worth more than an unreachable one.
    pub(crate) fn takes_precedence_over(&self, later: &Self) -> bool {
        let weight = |error: &Self| match error {
            error if error.is_unconfirmed() => 2,
            Self::Refused { problem } if problem.reason == OTHER_INCARNATION => 1,
            error if error.is_no_leader() => 1,
            _ => 0,
        };
        weight(self) > weight(later)
    }

    /// The error of a call with deadline `after`, on a connection that may have been refused.
    pub(crate) fn from_status(
        address: &str,
        after: Duration,
        refusal: Option<String>,
        status: &Status,
    ) -> Self {
        let address = address.to_owned();
        if let Some(dial) = status_source::<ClientDialError>(status) {
            return dial.clone().with_address(address);
        }
        let problem = Problem::from(status);
        // Without a reason code the status comes from the transport.
        let from_below = problem.reason.is_empty() && std::error::Error::source(status).is_some();
        match problem.code {
            _ if from_below && status_source::<TimeoutExpired>(status).is_some() => {
                Self::NoAnswer { address, after }
            }
            _ if from_below => broken_connection(address, refusal, status),
            Code::Unauthenticated | Code::PermissionDenied => Self::Denied { address, why: problem.message },
            _ if has_expired(status) => Self::NoAnswer { address, after },
            Code::Unavailable if problem.reason.is_empty() => {
                Self::Unreachable { address, why: problem.message }
            }
            _ => Self::Refused { problem },
        }
    }

    /// The error of connecting to all known managers: that of a single one if it is more than unreachable.
    pub(crate) fn from_connect_errors(errors: Vec<Self>) -> Self {
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

    /// The error of an attempt to connect.
    pub(crate) fn from_connect(
        address: &str,
        refusal: Option<String>,
        error: &(dyn std::error::Error + 'static),
    ) -> Self {
        let address = address.to_owned();
        match chain(error).find_map(|cause| cause.downcast_ref::<ClientDialError>()) {
            Some(dial) => dial.clone().with_address(address),
            None => broken_connection(address, refusal, error),
        }
    }
}

/// Error of a dial. Passed through the layers of the transport as a source and recovered by downcasting.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{why}")]
pub(crate) struct ClientDialError {
    kind: DialErrorKind,
    why: String,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum DialErrorKind {
    Unreachable,
    Untrusted,
    Denied,
}

impl ClientDialError {
    pub fn new(kind: DialErrorKind, why: impl ToString) -> Self {
        Self { kind, why: why.to_string() }
    }

    /// The error of a dial whose certificate has expired and was not renewed.
    pub fn from_renewal(error: Error) -> Self {
        let (kind, why) = match error {
            Error::Unreachable { why, .. } => return Self::new(DialErrorKind::Unreachable, why),
            Error::Untrusted { why, .. } => return Self::new(DialErrorKind::Untrusted, why),
            Error::Denied { why, .. } => (DialErrorKind::Denied, why),
            other => (DialErrorKind::Unreachable, other.to_string()),
        };
        Self::new(kind, format!("the certificate of the context has expired, and was not renewed: {why}"))
    }

    /// The error of a call to `address`.
    fn with_address(self, address: String) -> Error {
        let why = self.why;
        match self.kind {
            DialErrorKind::Unreachable => Error::Unreachable { address, why },
            DialErrorKind::Untrusted => Error::Untrusted { address, why },
            DialErrorKind::Denied => Error::Denied { address, why },
        }
    }
}

fn broken_connection(
    address: String,
    refusal: Option<String>,
    error: &(dyn std::error::Error + 'static),
) -> Error {
    if let Some(alert) = refusal {
        let why = match alert.as_str() {
            REVOKED_ALERT => {
                "the certificate of the context is revoked: the user was removed or logged out, or an administrator \
                 revoked the key; a new login token comes from `warren user token`"
                    .to_owned()
            }
            alert => {
                // One that has expired by the clock of this machine is renewed before.
                let hint = match alert {
                    EXPIRED_ALERT => ": the clock of this machine is behind that of the manager; set it right",
                    _ => "",
                };
                format!("it rejected the certificate of the context ({alert}){hint}")
            }
        };
        return Error::Denied { address, why };
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

/// The innermost error; the outer ones only report a failed transport.
fn innermost(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    chain(error).skip(1).last().map(ToString::to_string)
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
