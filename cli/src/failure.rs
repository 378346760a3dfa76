//! What a manager's refusal, or the lack of one, means for whoever typed the command.

use tonic::Code;
use warren_client::Error;
pub use warren_process::{Exit, Failure};
use warren_proto::status::DISK_FULL;

/// Where a manager says more than its answer does.
const MANAGER_LOG: &str = "read what the manager wrote to standard error, on its machine (`journalctl --unit UNIT` \
                           where systemd runs it); `warren manager ls` shows where the managers are";
/// What to do while nobody leads.
const LEADERLESS: &str = "see which managers answer with `warren manager ls --stale`, and start the others; if most \
                          are lost for good, stop one that is left and make it the cluster: `warren manager init \
                          --force-new-cluster` on its machine, with the --data-dir that it has";

/// `what` did not happen because of `error`.
pub fn of_client(what: impl Into<String>, error: Error) -> Failure {
    let (exit, hint) = match &error {
        Error::NoContext { .. } => {
            let hint = "run `warren manager init` on this machine, or pass --manager or --context";
            return Failure::new(Exit::Usage, what, "there is no cluster context", hint);
        }
        Error::Refused { problem } if !problem.violations.0.is_empty() => {
            return Failure::invalid(what, problem.violations.clone());
        }
        no_leader if no_leader.is_no_leader() => (Exit::Unreachable, LEADERLESS),
        Error::Refused { problem } if problem.reason == "CHANGED_SINCE_CREATED" => {
            (Exit::Conflict, "it was created; look at what it is now with `inspect`")
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
        Error::Input(_) => (Exit::Failed, "check what is to be sent"),
    };
    Failure::new(exit, what, &error, hint)
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
