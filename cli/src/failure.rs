//! What a manager's refusal, or the lack of one, means for whoever typed the command.

use tonic::Code;
use warren_client::Error;
pub use warren_process::{Exit, Failure};
use warren_proto::status::DISK_FULL;

/// Where a manager says more than its answer does.
const MANAGER_LOG: &str = "read what the manager wrote to standard error, on its machine (`journalctl --unit UNIT` \
                           where systemd runs it); `warren manager ls` shows where the managers are";
/// Reason of the refusal of a create that was carried out before, and whose object was changed since.
const CHANGED_SINCE_CREATED: &str = "CHANGED_SINCE_CREATED";
/// What to do while nobody leads.
const LEADERLESS: &str = "see which managers answer with `warren manager ls --stale`, and start the others; if most \
                          are lost for good, stop one that is left and make it the cluster: `warren manager init \
                          --force-new-cluster` on its machine, with the --data-dir that it has";

/// What to do when it may be our own write that is in the way.
const UNCONFIRMED: &str = "look at what there is now with `inspect` or `ls`, then try again";

/// `what` did not happen because of `error`, or may have happened all the same.
pub fn of_client(what: impl Into<String>, error: Error) -> Failure {
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
    match failure.exit {
        _ if !is_unconfirmed => failure,
        Exit::Conflict | Exit::NotFound => Failure { why, hint: UNCONFIRMED.to_owned(), ..failure },
        _ => Failure { why, ..failure },
    }
}

/// `what` did not happen because of `error`, which is all there is to say.
fn of_end(what: String, error: &Error) -> Failure {
    let (exit, hint) = match error {
        Error::NoContext { .. } => {
            let hint = "run `warren manager init` on this machine, or pass --manager or --context";
            return Failure::new(Exit::Usage, what, "there is no cluster context", hint);
        }
        Error::Refused { problem } if !problem.violations.0.is_empty() => {
            return Failure::invalid(what, problem.violations.clone());
        }
        no_leader if no_leader.is_no_leader() => (Exit::Unreachable, LEADERLESS),
        Error::Refused { problem } if problem.reason == CHANGED_SINCE_CREATED => {
            (Exit::Conflict, "look at what it is now with `inspect`")
        }
        Error::Refused { problem } if problem.reason == DISK_FULL => {
            let hint = "make room on that disk, or ask another manager with --manager; `--stale` shows what this \
                        one has";
            (Exit::Failed, hint)
        }
        Error::Refused { problem } => of_code(problem.code),
        Error::UnknownContext { .. } => (Exit::NotFound, "choose one of those with --context"),
        Error::NoIdentity { .. } => (Exit::Usage, "choose a context that has a certificate with --context"),
        Error::ContextsFile { .. } => (Exit::Failed, "correct the file, or name another in WARREN_CONTEXTS"),
        Error::Identity { .. } => (Exit::Failed, "get the context's certificates anew"),
        Error::Unreachable { .. } | Error::NoAnswer { .. } => {
            (Exit::Unreachable, "check that the manager runs and that its address is the context's")
        }
        Error::Untrusted { .. } => {
            (Exit::Denied, "check the address; if it is right, use that cluster's context")
        }
        Error::Denied { .. } => {
            (Exit::Denied, "use a context that may do this, or become root or a member of group warren")
        }
        Error::Unconfirmed { end, .. } => return of_end(what, end),
        Error::Input(_) => (Exit::Failed, "check what is to be sent"),
    };
    Failure::new(exit, what, error, hint)
}

/// As [`of_client`], with a `hint` of its own for what is refused by this `reason`.
pub fn of_refusal(what: impl Into<String>, error: Error, reason: &str, hint: String) -> Failure {
    let meant = matches!(&error, Error::Refused { problem } if problem.reason == reason);
    let failure = of_client(what, error);
    if meant { Failure { hint, ..failure } } else { failure }
}

fn of_code(code: Code) -> (Exit, &'static str) {
    match code {
        Code::InvalidArgument | Code::OutOfRange => (Exit::Usage, "correct it and try again"),
        Code::NotFound => (Exit::NotFound, "look at what there is with `ls`"),
        Code::AlreadyExists => (Exit::Conflict, "choose another, or remove the one that is there"),
        Code::FailedPrecondition | Code::Aborted => (Exit::Conflict, "look at its state, then try again"),
        Code::Unavailable => (Exit::Unreachable, "try again in a moment; see `warren manager ls --stale`"),
        Code::DeadlineExceeded => (Exit::TimedOut, "see `warren manager ls --stale`, then try again"),
        Code::ResourceExhausted => (Exit::Failed, "try again later"),
        Code::Unimplemented => (Exit::Failed, "use the program's version that the managers have"),
        _ => (Exit::Failed, MANAGER_LOG),
    }
}

#[cfg(test)]
mod tests {
    use warren_proto::Problem;
    use warren_types::{Violation, Violations};

    use super::*;

    fn refused(problem: Problem) -> Failure {
        of_client("service web was not created", Error::Refused { problem })
    }

    #[test]
    fn each_code_has_its_exit() {
        let cases = [
            (Code::InvalidArgument, Exit::Usage),
            (Code::NotFound, Exit::NotFound),
            (Code::AlreadyExists, Exit::Conflict),
            (Code::FailedPrecondition, Exit::Conflict),
            (Code::Aborted, Exit::Conflict),
            (Code::Unavailable, Exit::Unreachable),
            (Code::DeadlineExceeded, Exit::TimedOut),
            (Code::ResourceExhausted, Exit::Failed),
            (Code::Internal, Exit::Failed),
        ];
        for (code, exit) in cases {
            assert_eq!(refused(Problem::new(code, "X", "no")).exit, exit, "{code:?}");
        }
        let unreachable = Error::Unreachable { address: "a:1".into(), why: "Connection refused".into() };
        assert_eq!(of_client("x", unreachable).exit, Exit::Unreachable);
        let denied = Error::Denied { address: "a:1".into(), why: "not an admin".into() };
        assert_eq!(of_client("x", denied).exit, Exit::Denied);
    }

    #[test]
    fn a_reason_may_have_its_own_hint() {
        let problem = |reason| Problem::new(Code::FailedPrecondition, reason, "no");
        let hint = |reason| {
            let error = Error::Refused { problem: problem(reason) };
            of_refusal("x", error, "IN_USE", "use it less".to_owned()).hint
        };
        assert_eq!(hint("IN_USE"), "use it less");
        assert_eq!(hint("OTHER"), "look at its state, then try again");
    }

    #[test]
    fn a_failure_says_what_why_and_what_to_do() {
        let problem = Problem::new(Code::AlreadyExists, "ALREADY_EXISTS", "there is a service web");
        insta::assert_snapshot!(refused(problem), @r"
        service web was not created
          why: there is a service web
          try: choose another, or remove the one that is there
        ");
    }

    #[test]
    fn without_a_leader_it_leads_to_the_managers_and_to_force_new_cluster() {
        let problem = Problem::new(Code::Unavailable, "NO_LEADER", "the managers have had no leader for 2s");
        let failure = refused(problem);
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(
            failure.hint.starts_with("see which managers answer with `warren manager ls --stale`"),
            "{failure}"
        );
        assert!(failure.hint.contains("`warren manager init --force-new-cluster`"), "{failure}");
        assert!(failure.hint.contains("--data-dir"), "{failure}");
    }

    fn unconfirmed(end: Problem) -> Failure {
        let end = Box::new(Error::Refused { problem: end });
        of_client("service web was not updated", Error::Unconfirmed { address: "a:1".into(), end })
    }

    #[test]
    fn refusal_of_an_unconfirmed_write_does_not_claim_that_nothing_happened() {
        let conflict = Problem::new(Code::Aborted, "VERSION_CONFLICT", "service web is at version 7, not 5");
        insta::assert_snapshot!(unconfirmed(conflict), @r"
        service web was not updated, as far as is known
          why: service web is at version 7, not 5; an attempt at a:1 was not confirmed and may have been applied
          try: look at what there is now with `inspect` or `ls`, then try again
        ");
        let taken = Problem::new(Code::AlreadyExists, "ALREADY_EXISTS", "there is a service web");
        assert_eq!(
            (unconfirmed(taken.clone()).exit, unconfirmed(taken).hint.as_str()),
            (Exit::Conflict, UNCONFIRMED)
        );
        let leaderless = unconfirmed(Problem::new(Code::Unavailable, "NO_LEADER", "nobody leads"));
        assert_eq!((leaderless.exit, leaderless.hint.as_str()), (Exit::Unreachable, LEADERLESS));
        // A manager that does not know says so itself.
        let late = refused(Problem::new(Code::Unavailable, "UNCONFIRMED", "the write may still happen"));
        assert_eq!(late.what, "service web was not created, as far as is known");
        assert_eq!(late.why, "the write may still happen");
    }

    #[test]
    fn create_that_was_carried_out_and_changed_since_is_told_as_a_repetition() {
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
    fn without_a_context_it_says_how_to_get_one() {
        let error = Error::NoContext { file: "/root/.config/warren/contexts.toml".into() };
        insta::assert_snapshot!(of_client("services were not listed", error), @r"
        services were not listed
          why: there is no cluster context
          try: run `warren manager init` on this machine, or pass --manager or --context
        ");
    }
}
