//! Errors on the wire: a gRPC status whose details have a reason for programs and the invalid fields for
//! users.
//!
//! The details are google.rpc messages: `ErrorInfo` (reason in capitals, domain [`DOMAIN`]) and `BadRequest`
//! (a path and a sentence per field). They are sent in one HTTP/2 header, which peers limit to 16 KiB in
//! total, so they are cut to fit: an error that is too long must not break the connection.

use std::collections::HashMap;
use std::fmt;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use warren_types::{Violation, Violations};

/// Domain of every reason.
pub const DOMAIN: &str = "warren.io";

/// Reason for a node that was removed from the cluster: it has to join again.
pub const NODE_REMOVED: &str = "NODE_REMOVED";

/// Reason for a node that the manager does not know, without being certain that it was removed.
pub const NODE_UNKNOWN: &str = "NODE_UNKNOWN";

/// Reason for clients and nodes if the manager has no leader: another manager may have one.
pub const NO_LEADER: &str = "NO_LEADER";

/// Reason for clients and nodes if the manager is stopping: another one continues.
pub const MANAGER_STOPPING: &str = "MANAGER_STOPPING";

/// Reason for clients on the machine of a manager that is locked: it waits for the unlock key.
pub const MANAGER_LOCKED: &str = "MANAGER_LOCKED";

/// Reason for clients if the disk of the manager is full. Nothing was done; another manager may do it.
pub const DISK_FULL: &str = "DISK_FULL";

/// As [`DISK_FULL`], if the disk fails for another reason.
pub const DISK_FAILED: &str = "DISK_FAILED";

/// Reason for a node or a watcher that has seen a newer state of the cluster than the manager has: another
/// manager has that state.
pub const MANAGER_BEHIND: &str = "MANAGER_BEHIND";

/// Reason for clients that ask for events which the manager does not keep.
pub const EVENTS_EXPIRED: &str = "EVENTS_EXPIRED";

/// Reason for all callers of a manager whose incarnation of the cluster is earlier than one that they have
/// seen: managers of the later one continue.
pub const OTHER_INCARNATION: &str = "OTHER_INCARNATION";

/// Reason for a manager that calls one of a later incarnation of the cluster: its own has ended.
pub const INCARNATION_SUPERSEDED: &str = "INCARNATION_SUPERSEDED";

/// Metadata: the incarnation of the cluster that a manager is in, in its responses to clients and its errors;
/// in requests of clients, the latest that they have seen. A number.
pub const INCARNATION: &str = "warren-incarnation";

/// Reason for nodes that get no access to the registry of an image. `UNAVAILABLE` if they may get it later.
pub const NO_REGISTRY_ACCESS: &str = "NO_REGISTRY_ACCESS";

/// Reason for the end of a node's session when the node has opened a newer one.
pub const SESSION_SUPERSEDED: &str = "SESSION_SUPERSEDED";

/// Reason for clients if a node did not accept a new program and runs the earlier one.
pub const NODE_NOT_UPGRADED: &str = "NODE_NOT_UPGRADED";

/// Reason for clients if the command to run in a container does not exist.
pub const COMMAND_NOT_FOUND: &str = "COMMAND_NOT_FOUND";

/// Reason for clients if the command to run in a container exists and cannot be executed.
pub const COMMAND_NOT_EXECUTABLE: &str = "COMMAND_NOT_EXECUTABLE";

/// Reason for clients if nothing in a container accepts a connection.
pub const CONNECTION_REFUSED: &str = "CONNECTION_REFUSED";

/// Reason for clients if the first process of a task has no standard input, or that has ended.
pub const INPUT_NOT_OPEN: &str = "INPUT_NOT_OPEN";

/// The most bytes of a message. It is sent twice, once percent-encoded, so it has the smaller share of the
/// header.
const MAX_MESSAGE: usize = 1024;
/// The most bytes of each violation's path and message.
const MAX_VIOLATION_TEXT: usize = 256;
/// More violations than this are counted, not listed. With the limits above: 10 KiB before encoding at most.
const MAX_VIOLATIONS: usize = 16;

/// An error of a request, as a manager sends it and a client reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Kind of error.
    pub code: Code,
    /// For programs, in capitals: `SERVICE_EXISTS`. Empty if the peer is not a Warren manager (a proxy, a
    /// broken connection).
    pub reason: String,
    /// Human-readable: what was expected, what was found, what to do.
    pub message: String,
    /// The invalid fields, with paths from the root of the request.
    pub violations: Violations,
}

impl Problem {
    /// A problem without invalid fields.
    pub fn new(code: Code, reason: &str, message: impl fmt::Display) -> Self {
        let violations = Violations::default();
        Self { code, reason: reason.to_owned(), message: message.to_string(), violations }
    }
}

/// Invalid fields of a request: `INVALID_ARGUMENT`.
impl From<Violations> for Problem {
    fn from(violations: Violations) -> Self {
        let message = match violations.0.as_slice() {
            [one] => format!("the request has an invalid field: {one}"),
            many => format!("the request has {} invalid fields", many.len()),
        };
        Self { violations, ..Self::new(Code::InvalidArgument, "INVALID_ARGUMENT", message) }
    }
}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Self {
        let mut details = ErrorDetails::new();
        details.set_error_info(problem.reason, DOMAIN, HashMap::new());
        let (listed, rest) = problem.violations.0.split_at(problem.violations.0.len().min(MAX_VIOLATIONS));
        for Violation { path, message } in listed {
            details
                .add_bad_request_violation(cut(path, MAX_VIOLATION_TEXT), cut(message, MAX_VIOLATION_TEXT));
        }
        if !rest.is_empty() {
            details.add_bad_request_violation("", format!("and {} more", rest.len()));
        }
        Status::with_error_details(problem.code, cut(&problem.message, MAX_MESSAGE), details)
    }
}

/// Total: a status without these details keeps its code and message.
impl From<&Status> for Problem {
    fn from(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info().filter(|info| info.domain == DOMAIN);
        let fields = details.bad_request().map(|bad| bad.field_violations.as_slice()).unwrap_or_default();
        let violation =
            |field: &tonic_types::FieldViolation| Violation::new(&field.field, &field.description);
        Self {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            message: status.message().to_owned(),
            violations: Violations(fields.iter().map(violation).collect()),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

/// The first `most` bytes of `text` at most, with a mark if something was cut.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let sign = "…";
    format!("{}{sign}", &text[..text.floor_char_boundary(most - sign.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(violations: usize, text: &str) -> Problem {
        let violations = (0..violations).map(|_| Violation::new(text, text)).collect();
        let problem = Problem::new(Code::AlreadyExists, "SERVICE_EXISTS", text);
        Problem { violations: Violations(violations), ..problem }
    }

    #[test]
    fn problem_round_trip() {
        for expected in [problem(0, "there is a service web"), problem(2, "spec.name")] {
            let status = Status::from(expected.clone());
            assert_eq!(Problem::from(&status), expected);
        }
    }

    #[test]
    fn longest_problem_fits_in_headers() {
        let status = Status::from(problem(100, &"ü".repeat(10_000)));
        let headers = status.clone().into_http::<()>().into_parts().0.headers;
        // HTTP/2 counts 32 bytes more per header.
        let size: usize = headers.iter().map(|(k, v)| k.as_str().len() + v.len() + 32).sum();
        assert!(size < 16 << 10, "{size}");
        let found = Problem::from(&status);
        assert_eq!(found.reason, "SERVICE_EXISTS");
        assert_eq!(found.violations.0.len(), MAX_VIOLATIONS + 1);
        assert_eq!(found.violations.0[MAX_VIOLATIONS].message, "and 84 more");
        assert!(found.message.ends_with("ü…") && found.message.len() <= MAX_MESSAGE);
    }

    #[test]
    fn foreign_status_is_kept() {
        let found = Problem::from(&Status::unavailable("connection refused"));
        assert_eq!(found, Problem::new(Code::Unavailable, "", "connection refused"));
        let mut foreign = ErrorDetails::new();
        foreign.set_error_info("RATE_LIMITED", "example.org", HashMap::new());
        let status = Status::with_error_details(Code::ResourceExhausted, "slow down", foreign);
        assert_eq!(Problem::from(&status).reason, "");
    }

    #[test]
    fn violations_are_listed_in_message_and_details() {
        let one = Violations::from(Violation::new("spec.name", "is missing"));
        let problem = Problem::from(one.clone());
        assert_eq!(problem.to_string(), "the request has an invalid field: spec.name: is missing");
        assert_eq!((problem.code, problem.violations), (Code::InvalidArgument, one.clone()));
        let two = Violations([one.clone().0, one.0].concat());
        assert_eq!(Problem::from(two).to_string(), "the request has 2 invalid fields");
    }
}
