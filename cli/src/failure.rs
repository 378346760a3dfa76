//! Maps errors of the client to exit codes and hints.

use tonic::Code;
use warren_client::Error;
pub use warren_daemon::{CommandError, ExitKind};
use warren_proto::status::{DISK_FULL, MANAGER_LOCKED};

use crate::args::suggestion::nearest;

/// Hint for errors whose details are only in the log of the manager.
const MANAGER_LOG_HINT: &str = "see the log of the manager (`journalctl --unit UNIT` under systemd); \
                                `warren manager ls` shows the addresses";
/// Reason code of a repeated create whose object was changed since the first one.
const CHANGED_SINCE_CREATED: &str = "CHANGED_SINCE_CREATED";
/// Reason code of a host port that another service publishes.
const PORT_TAKEN: &str = "PORT_TAKEN";
/// Reason code of the use of a volume that was removed and whose data remains.
const VOLUME_RELEASED: &str = "VOLUME_RELEASED";
/// Hint while there is no leader.
const LEADERLESS_HINT: &str = "check which managers respond with `warren manager ls --stale` and start the others; if \
                               most are lost for good, stop a remaining manager and run `warren manager init \
                               --force-new-cluster` on it with its --data-dir";

/// Hint for a conflict that an earlier attempt of the same command may have caused.
const UNCONFIRMED: &str = "run `inspect` or `ls` to see the current state, then retry";

/// The failure of an operation (`what`); an unconfirmed write may have been applied all the same.
pub fn from_client(what: impl Into<String>, error: Error) -> CommandError {
    let (what, why, is_unconfirmed) = (what.into(), error.to_string(), error.is_unconfirmed());
    let end = match &error {
        Error::Unconfirmed { end, .. } => end,
        error => error,
    };
    let what = match end {
        Error::Refused { problem } if problem.reason == CHANGED_SINCE_CREATED => format!("{what} again"),
        _ if is_unconfirmed => format!("{what}, as far as is known"),
        _ => what,
    };
    let failure = of_end(what, end);
    match failure.kind {
        _ if !is_unconfirmed => failure,
        ExitKind::Conflict | ExitKind::NotFound => {
            CommandError { why, hint: UNCONFIRMED.to_owned(), ..failure }
        }
        _ => CommandError { why, ..failure },
    }
}

/// The failure of an operation whose `error` is final.
fn of_end(what: String, error: &Error) -> CommandError {
    let (exit, hint) = match error {
        Error::NoContext { .. } => {
            let hint = "run `warren manager init` on this machine, or pass --manager or --context";
            return CommandError::new(ExitKind::Usage, what, "there is no cluster context", hint);
        }
        Error::Refused { problem } if !problem.violations.0.is_empty() => {
            return CommandError::invalid_fields(what, problem.violations.clone());
        }
        no_leader if no_leader.is_no_leader() => (ExitKind::Unreachable, LEADERLESS_HINT),
        Error::Refused { problem } if problem.reason == CHANGED_SINCE_CREATED => {
            (ExitKind::Conflict, "run `inspect` to see the current version")
        }
        Error::Refused { problem } if problem.reason == VOLUME_RELEASED => {
            (ExitKind::Conflict, "list the data that remains with `warren volume ls --all`")
        }
        Error::Refused { problem } if problem.reason == DISK_FULL => {
            let hint = "free space on that disk, or use another manager with --manager; `--stale` shows the data of \
                        this one";
            (ExitKind::Failed, hint)
        }
        Error::Refused { problem } if problem.reason == MANAGER_LOCKED => (
            ExitKind::Unreachable,
            "run `warren manager unlock` on this machine, or use another manager with --manager",
        ),
        Error::Refused { problem } if problem.reason == PORT_TAKEN => (
            ExitKind::Conflict,
            "publish another port, or unpublish that one there with `warren service update`",
        ),
        Error::Refused { problem } if problem.reason == "TOO_MANY_REPLICAS" => {
            (ExitKind::Conflict, "correct the number, or confirm it with --yes")
        }
        Error::Refused { problem } => exit_of_code(problem.code),
        Error::UnknownContext { .. } => (ExitKind::NotFound, "list the contexts with `warren context ls`"),
        Error::NoIdentity { .. } => {
            (ExitKind::Usage, "choose a context that has a certificate with --context")
        }
        Error::ContextsFile { .. } => {
            (ExitKind::Failed, "correct the file, or name another in WARREN_CONTEXTS")
        }
        Error::Identity { .. } => (ExitKind::Failed, "create the context again with new certificates"),
        Error::Unreachable { .. } | Error::NoAnswer { .. } => {
            (ExitKind::Unreachable, "check that the manager runs and that the context has its address")
        }
        Error::Untrusted { .. } => {
            (ExitKind::Denied, "check the address; if it is right, use that cluster's context")
        }
        Error::Denied { .. } => {
            (ExitKind::Denied, "use a context that may do this, or become root or a member of group warren")
        }
        Error::Unconfirmed { end, .. } => return of_end(what, end),
        Error::Input(_) => (ExitKind::Failed, "check the input file"),
    };
    CommandError::new(exit, what, error, hint)
}

/// As [`from_client`], but with `hint` if the manager refused with this reason code.
pub fn from_client_with_hint(
    what: impl Into<String>,
    error: Error,
    reason: &str,
    hint: String,
) -> CommandError {
    let meant = matches!(&error, Error::Refused { problem } if problem.reason == reason);
    let failure = from_client(what, error);
    if meant { CommandError { hint, ..failure } } else { failure }
}

/// As [`from_client`] for an object that was not found, with the one of `names` that was probably meant by `given`.
pub fn not_found<'a>(
    what: impl Into<String>,
    error: Error,
    given: &str,
    names: impl Iterator<Item = &'a str>,
) -> CommandError {
    let failure = from_client(what, error);
    match nearest(given, names) {
        Some(meant) => CommandError { hint: format!("did you mean {meant}?"), ..failure },
        None => failure,
    }
}

fn exit_of_code(code: Code) -> (ExitKind, &'static str) {
    match code {
        Code::InvalidArgument | Code::OutOfRange => (ExitKind::Usage, "correct the input and retry"),
        Code::NotFound => (ExitKind::NotFound, "run `ls` to list what exists"),
        Code::AlreadyExists => (ExitKind::Conflict, "choose another name, or remove the existing object"),
        Code::FailedPrecondition | Code::Aborted => {
            (ExitKind::Conflict, "check the state with `inspect`, then retry")
        }
        Code::Unavailable => (ExitKind::Unreachable, "retry; see `warren manager ls --stale`"),
        Code::DeadlineExceeded => (ExitKind::TimedOut, "see `warren manager ls --stale`, then try again"),
        Code::ResourceExhausted => (ExitKind::Failed, "try again later"),
        Code::Unimplemented => (ExitKind::Failed, "use the same version as the managers"),
        _ => (ExitKind::Failed, MANAGER_LOG_HINT),
    }
}

#[cfg(test)]
mod tests {
    use warren_proto::Problem;
    use warren_types::{Violation, Violations};

    use super::*;

    fn refused(problem: Problem) -> CommandError {
        from_client("service web was not created", Error::Refused { problem })
    }

    #[test]
    fn each_code_has_its_exit() {
        let cases = [
            (Code::InvalidArgument, ExitKind::Usage),
            (Code::NotFound, ExitKind::NotFound),
            (Code::AlreadyExists, ExitKind::Conflict),
            (Code::FailedPrecondition, ExitKind::Conflict),
            (Code::Aborted, ExitKind::Conflict),
            (Code::Unavailable, ExitKind::Unreachable),
            (Code::DeadlineExceeded, ExitKind::TimedOut),
            (Code::ResourceExhausted, ExitKind::Failed),
            (Code::Internal, ExitKind::Failed),
        ];
        for (code, exit) in cases {
            assert_eq!(refused(Problem::new(code, "X", "no")).kind, exit, "{code:?}");
        }
        let unreachable = Error::Unreachable { address: "a:1".into(), why: "Connection refused".into() };
        assert_eq!(from_client("x", unreachable).kind, ExitKind::Unreachable);
        let denied = Error::Denied { address: "a:1".into(), why: "not an admin".into() };
        assert_eq!(from_client("x", denied).kind, ExitKind::Denied);
    }

    #[test]
    fn a_reason_may_have_its_own_hint() {
        let problem = |reason| Problem::new(Code::FailedPrecondition, reason, "no");
        let hint = |reason| {
            let error = Error::Refused { problem: problem(reason) };
            from_client_with_hint("x", error, "SERVICE_IN_USE", "use it less".to_owned()).hint
        };
        assert_eq!(hint("SERVICE_IN_USE"), "use it less");
        assert_eq!(hint("OTHER"), "check the state with `inspect`, then retry");
    }

    #[test]
    fn failure_has_summary_reason_and_hint() {
        let problem = Problem::new(Code::AlreadyExists, "ALREADY_EXISTS", "there is a service web");
        insta::assert_snapshot!(refused(problem), @r"
        service web was not created
          why: there is a service web
          try: choose another name, or remove the existing object
        ");
    }

    #[test]
    fn missing_leader_suggests_force_new_cluster() {
        let problem = Problem::new(Code::Unavailable, "NO_LEADER", "the managers have had no leader for 2s");
        let failure = refused(problem);
        assert_eq!(failure.kind, ExitKind::Unreachable);
        assert!(
            failure.hint.starts_with("check which managers respond with `warren manager ls --stale`"),
            "{failure}"
        );
        assert!(failure.hint.contains("`warren manager init --force-new-cluster`"), "{failure}");
        assert!(failure.hint.contains("--data-dir"), "{failure}");
    }

    fn unconfirmed(end: Problem) -> CommandError {
        let end = Box::new(Error::Refused { problem: end });
        from_client("service web was not updated", Error::Unconfirmed { address: "a:1".into(), end })
    }

    #[test]
    fn unconfirmed_write_refusal_admits_it_may_apply() {
        let conflict = Problem::new(Code::Aborted, "VERSION_CONFLICT", "service web is at version 7, not 5");
        insta::assert_snapshot!(unconfirmed(conflict), @r"
        service web was not updated, as far as is known
          why: service web is at version 7, not 5; an attempt at a:1 was not confirmed and may have been applied
          try: run `inspect` or `ls` to see the current state, then retry
        ");
        let taken = Problem::new(Code::AlreadyExists, "ALREADY_EXISTS", "there is a service web");
        assert_eq!(
            (unconfirmed(taken.clone()).kind, unconfirmed(taken).hint.as_str()),
            (ExitKind::Conflict, UNCONFIRMED)
        );
        let leaderless = unconfirmed(Problem::new(Code::Unavailable, "NO_LEADER", "there is no leader"));
        assert_eq!((leaderless.kind, leaderless.hint.as_str()), (ExitKind::Unreachable, LEADERLESS_HINT));
        // The manager itself may report an unconfirmed write.
        let late = refused(Problem::new(Code::Unavailable, "UNCONFIRMED", "the write may still happen"));
        assert_eq!(late.what, "service web was not created, as far as is known");
        assert_eq!(late.why, "the write may still happen");
    }

    #[test]
    fn repeated_create_of_changed_object_is_reported() {
        let changed =
            Problem::new(Code::AlreadyExists, "CHANGED_SINCE_CREATED", "service web was changed since");
        for failure in [refused(changed.clone()), unconfirmed(changed)] {
            assert!(failure.what.ends_with("d again"), "{failure}");
            assert!(failure.why.starts_with("service web was changed since"), "{failure}");
            assert!(!failure.hint.contains("created"), "{failure}");
        }
    }

    #[test]
    fn fields_are_listed_with_their_paths() {
        let mut fields = Violations::default();
        fields.add("spec.task.limits.memory", "1MiB is below the runtime's minimum of 6MiB");
        fields.add("spec.ports[1].hostPort", "host port 80 is already published by ports[0]");
        fields.0.push(Violation::new("", "and 3 more"));
        insta::assert_snapshot!(refused(fields.into()), @r"
        service web was not created
          why: 3 fields are wrong
               spec.task.limits.memory: 1MiB is below the runtime's minimum of 6MiB
               spec.ports[1].hostPort: host port 80 is already published by ports[0]
               and 3 more
          try: correct what is listed and try again
        ");
    }

    #[test]
    fn missing_context_suggests_init() {
        let error = Error::NoContext { file: "/root/.config/warren/contexts.toml".into() };
        insta::assert_snapshot!(from_client("services were not listed", error), @r"
        services were not listed
          why: there is no cluster context
          try: run `warren manager init` on this machine, or pass --manager or --context
        ");
    }
}
