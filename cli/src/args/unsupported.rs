//! What Warren will have and this version does not: named, so that it is refused as what it is and not as a
//! typing error. When a later version supports something, its line here goes.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of `service create`.
const CREATE_FLAGS: &[&str] = &[
    "--affinity",
    "--alias",
    "--anti-affinity",
    "--backoff-limit",
    "--bind",
    "--canary-steps",
    "--cap-add",
    "--cap-drop",
    "--completions",
    "--config",
    "--constraint",
    "--deadline",
    "--device",
    "--dns",
    "--drain-delay",
    "--endpoint-mode",
    "--gpus",
    "--health-cmd",
    "--health-http",
    "--health-interval",
    "--health-retries",
    "--health-start-interval",
    "--health-start-period",
    "--health-tcp",
    "--health-timeout",
    "--host",
    "--hostname",
    "--init",
    "--log-files",
    "--log-max-size",
    "--max-per-node",
    "--network",
    "--no-new-privileges",
    "--on-disconnect",
    "--oom-score-adj",
    "--overlap",
    "--parallelism",
    "--pids",
    "--prefer",
    "--priority",
    "--privileged",
    "--progress-deadline",
    "--pull",
    "--read-only",
    "--registry-credential",
    "--replace-after",
    "--resource",
    "--restart",
    "--restart-delay",
    "--restart-max",
    "--restart-window",
    "--schedule",
    "--seccomp",
    "--secret",
    "--shm-size",
    "--stop-signal",
    "--strategy",
    "--sysctl",
    "--timezone",
    "--tmpfs",
    "--toleration",
    "--tty",
    "--ulimit",
    "--update-delay",
    "--update-failure-ratio",
    "--update-monitor",
    "--update-on-failure",
    "--update-order",
    "--update-parallelism",
    "--user",
    "--user-namespace",
    "--volume",
    "--workdir",
];

/// Flags of `manager init`.
const INIT_FLAGS: &[&str] = &["--force-new-cluster", "--label", "--runtime", "--taint"];

/// Commands, each with the noun before it.
const COMMANDS: &[&str] = &[
    "apply",
    "cluster ca",
    "cluster events",
    "cluster health",
    "cluster key",
    "cluster update",
    "completion",
    "config",
    "context",
    "diff",
    "image ls",
    "image prune",
    "image pull",
    "login",
    "manager backup",
    "manager demote",
    "manager join",
    "manager ls",
    "manager promote",
    "manager restore",
    "manager rm",
    "manager transfer-leadership",
    "network",
    "node drain",
    "node ps",
    "node rm",
    "node update",
    "registry",
    "rm",
    "secret",
    "service exec",
    "service history",
    "service logs",
    "service pause",
    "service promote",
    "service resume",
    "service rollback",
    "service top",
    "service update",
    "system",
    "task attach",
    "task cp",
    "task events",
    "task exec",
    "task logs",
    "task port-forward",
    "task restart",
    "token",
    "top",
    "volume",
    "worker",
];

/// What of `arguments` (without the program's name) this version does not support yet, if that is what
/// `error`, which `command` answered to them, is about.
pub fn find(error: &clap::Error, command: &clap::Command, arguments: &[String]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let path = path(command, arguments);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let flag = text(ContextKind::InvalidArg)?;
            let flag = flag.split('=').next().unwrap_or(flag);
            let known = match path.as_str() {
                "service create" => CREATE_FLAGS,
                "manager init" | "manager run" => INIT_FLAGS,
                _ => return None,
            };
            known.contains(&flag).then(|| format!("{flag} of `warren {path}`"))
        }
        ErrorKind::InvalidSubcommand => {
            let unknown = text(ContextKind::InvalidSubcommand)?;
            let whole = format!("{path} {unknown}");
            let whole = whole.trim_start();
            COMMANDS.contains(&whole).then(|| format!("`warren {whole}`"))
        }
        _ => None,
    }
}

/// The nouns and verbs among the arguments that are known.
fn path(command: &clap::Command, arguments: &[String]) -> String {
    let (mut command, mut path) = (command, Vec::new());
    for argument in arguments {
        if let Some(inner) = command.find_subcommand(argument) {
            path.push(inner.get_name());
            command = inner;
        }
    }
    path.join(" ")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn check(line: &str, wanted: Option<&str>) {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let command = Cli::command();
        let given = std::iter::once("warren".to_owned()).chain(words.iter().cloned());
        let error = command.clone().try_get_matches_from(given).expect_err(line);
        assert_eq!(find(&error, &command, &words).as_deref(), wanted, "{line}: {error}");
    }

    #[test]
    fn what_is_to_come_is_told_from_what_is_mistyped() {
        let network = Some("--network of `warren service create`");
        check("service create web --image nginx --network front", network);
        check("service create web --network=front", network);
        check("-o json service create --tty web --image nginx", Some("--tty of `warren service create`"));
        check("service create web --image nginx --netwrk x", None);
        check("service ls --network x", None);
        check("manager init --taint a=b", Some("--taint of `warren manager init`"));
        check("service update web", Some("`warren service update`"));
        check("worker join a:1 --token t", Some("`warren worker`"));
        check("service updat web", None);
        check("service create web --image nginx --replicas x", None);
    }

    /// A line that was forgotten here when the flag or command came.
    #[test]
    fn nothing_that_is_supported_is_listed() {
        let root = Cli::command();
        for line in COMMANDS {
            let mut command = Some(&root);
            for word in line.split(' ') {
                command = command.and_then(|command| command.find_subcommand(word));
            }
            assert!(command.is_none(), "{line}");
        }
        let create = root.find_subcommand("service").and_then(|service| service.find_subcommand("create"));
        let supported = create.unwrap().get_arguments().flat_map(|a| a.get_long_and_visible_aliases());
        let supported: Vec<&str> = supported.flatten().collect();
        assert!(supported.contains(&"publish"));
        for flag in CREATE_FLAGS {
            assert!(!supported.contains(&flag.trim_start_matches("--")), "{flag}");
        }
        assert!(CREATE_FLAGS.is_sorted() && COMMANDS.is_sorted() && INIT_FLAGS.is_sorted());
    }
}
