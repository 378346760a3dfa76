//! How an error travels: a gRPC status whose details name a reason for programs and the fields for people.
//!
//! The details are google.rpc messages: `ErrorInfo` (reason in capitals, domain [`DOMAIN`]) and `BadRequest`
//! (a path and a sentence per field). They travel in one HTTP/2 header, which peers bound to 16 KiB in all,
//! so what is sent is cut to fit: an error that is too long must not become a broken connection.

use std::collections::HashMap;
use std::fmt;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use warren_types::{Violation, Violations};

/// Domain of every reason.
pub const DOMAIN: &str = "warren.io";

/// Reason of what a node hears that was removed from the cluster: it has to join anew.
pub const NODE_REMOVED: &str = "NODE_REMOVED";

/// Reason of what a node hears that the manager does not know, without being sure that it was removed.
pub const NODE_UNKNOWN: &str = "NODE_UNKNOWN";

/// Reason of what callers and nodes hear from a manager that knows of no leader: another manager may know of one.
pub const NO_LEADER: &str = "NO_LEADER";

/// Reason of what callers and nodes hear from a manager that stops: another one goes on.
pub const STOPPING: &str = "STOPPING";

/// Reason of what callers hear from a manager without room on its disk. Nothing was done; another one may do it.
pub const DISK_FULL: &str = "DISK_FULL";

/// As [`DISK_FULL`], where the disk fails for another reason.
pub const DISK_FAILS: &str = "DISK_FAILS";

/// Reason of what a node or a watcher hears that has seen more of the cluster than the manager: another one has seen
/// it, too.
pub const BEHIND: &str = "BEHIND";

/// Reason of what everybody hears from a manager that is in an earlier life of the cluster than one that they have
/// seen: those of the later one go on.
pub const OTHER_LIFE: &str = "OTHER_LIFE";

/// Reason of what a manager hears from one that is in a later life of the cluster: its own is over.
pub const OVERTAKEN: &str = "OVERTAKEN";

/// Metadata: in which life of the cluster a manager is, in answers to people and in its refusals; in what people send,
/// the latest that they have seen. A number.
pub const LIFE: &str = "warren-life";

/// Reason of what a node's session ends with when the node has opened a newer one.
pub const SUPERSEDED: &str = "SUPERSEDED";

/// The message is sent twice, once percent-encoded, so it has the smaller share of the header.
const MAX_MESSAGE: usize = 1024;
/// Of each violation's path and message.
const MAX_VIOLATION_TEXT: usize = 256;
/// More violations than this are counted, not listed. With the bounds above: 10 KiB before encoding at most.
const MAX_VIOLATIONS: usize = 16;

/// What is wrong with a request, as a manager answers it and a client reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Kind of error.
    pub code: Code,
    /// For programs, in capitals: `SERVICE_EXISTS`. Empty when the peer is no Warren manager (a proxy, a
    /// broken connection).
    pub reason: String,
    /// For people: what was wanted, what was found, what to do.
    pub message: String,
    /// The fields that are wrong, with paths from the root of the request.
    pub violations: Violations,
}

impl Problem {
    /// A problem that no field is to blame for.
    pub fn new(code: Code, reason: &str, message: impl fmt::Display) -> Self {
        let violations = Violations::default();
        Self { code, reason: reason.to_owned(), message: message.to_string(), violations }
    }
}

/// Fields of a request that are wrong: `INVALID_ARGUMENT`.
impl From<Violations> for Problem {
    fn from(violations: Violations) -> Self {
        let message = match violations.0.as_slice() {
            [one] => format!("the request has a field that is wrong: {one}"),
            many => format!("the request has {} fields that are wrong", many.len()),
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

/// Total: what carries no details of ours keeps its code and message.
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

/// The beginning of `text` that has at most `most` bytes, with a sign that something is missing.
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
    fn a_problem_survives_the_way() {
        for wanted in [problem(0, "there is a service web"), problem(2, "spec.name")] {
            let status = Status::from(wanted.clone());
            assert_eq!(Problem::from(&status), wanted);
        }
    }

    #[test]
    fn the_longest_problem_fits_in_the_headers_of_a_reply() {
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
    fn a_status_that_is_not_ours_keeps_what_it_says() {
        let found = Problem::from(&Status::unavailable("connection refused"));
        assert_eq!(found, Problem::new(Code::Unavailable, "", "connection refused"));
        let mut foreign = ErrorDetails::new();
        foreign.set_error_info("RATE_LIMITED", "example.org", HashMap::new());
        let status = Status::with_error_details(Code::ResourceExhausted, "slow down", foreign);
        assert_eq!(Problem::from(&status).reason, "");
    }

    #[test]
    fn violations_become_one_sentence_and_a_list() {
        let one = Violations::from(Violation::new("spec.name", "is missing"));
        let problem = Problem::from(one.clone());
        assert_eq!(problem.to_string(), "the request has a field that is wrong: spec.name: is missing");
        assert_eq!((problem.code, problem.violations), (Code::InvalidArgument, one.clone()));
        let two = Violations([one.clone().0, one.0].concat());
        assert_eq!(Problem::from(two).to_string(), "the request has 2 fields that are wrong");
    }
}
