//! Flags and commands that this version does not support, and flags with an alternative: they get a specific error
//! instead of a usage error. When a version supports one, remove its line here.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of `service create`, and of `service update`, where list flags end in `-add` and `-rm`.
const SERVICE_FLAGS: &[&str] = &[
    "--affinity",
    "--alias",
    "--anti-affinity",
    "--backoff-limit",
    "--canary-steps",
    "--completions",
    "--deadline",
    "--dns",
    "--drain-delay",
    "--endpoint-mode",
    "--gpus",
    "--network",
    "--overlap",
    "--parallelism",
    "--prefer",
    "--priority",
    "--progress-deadline",
    "--resource",
    "--schedule",
    "--strategy",
    "--timezone",
    "--toleration",
    "--update-delay",
    "--update-failure-ratio",
    "--update-monitor",
    "--update-on-failure",
    "--update-order",
    "--update-parallelism",
    "--user-namespace",
];

/// Flags of `manager init`.
const INIT_FLAGS: &[&str] = &["--taint"];

/// Flags of `node update` and `node drain`.
const NODE_FLAGS: &[&str] = &["--deadline", "--taint-add", "--taint-rm"];

/// Commands, with their noun.
const COMMANDS: &[&str] = &[
    "apply",
    "cluster ca",
    "cluster events",
    "cluster health",
    "cluster key",
    "cluster update",
    "completion",
    "context",
    "diff",
    "login",
    "network",
    "rm",
    "service exec",
    "service pause",
    "service promote",
    "service resume",
    "system",
    "task attach",
    "task cp",
    "task events",
    "task exec",
    "task port-forward",
    "task restart",
    "top",
];

/// Flags of other tools that Warren replaces by another way.
const ALTERNATIVES: &[Alternative] = &[
    Alternative {
        commands: &["service create", "service update"],
        flags: &["--registry-credential"],
        reason: "credentials are selected by the registry host in the image",
        hint: "store them once with `warren registry login HOST`",
    },
    Alternative {
        commands: &["registry login"],
        flags: &["--password", "-p"],
        reason: "a password on the command line is visible to every user of this machine and kept in the history",
        hint: "use --password-stdin, or neither flag to be prompted",
    },
];

/// Flags of some commands, and the alternative.
struct Alternative {
    commands: &'static [&'static str],
    flags: &'static [&'static str],
    reason: &'static str,
    hint: &'static str,
}

/// An argument with a specific error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedArgument {
    /// The summary of the error.
    pub argument: String,
    /// The reason; empty if it is only not supported yet.
    pub reason: &'static str,
    /// The alternative.
    pub hint: &'static str,
}

/// The argument of `arguments` (without the program name) that caused `error`, the usage error of `command`, if it has
/// a specific error.
pub fn find(
    error: &clap::Error,
    command: &clap::Command,
    arguments: &[String],
) -> Option<UnsupportedArgument> {
    find_alternative(error, command, arguments).or_else(|| {
        let what = find_unsupported(error, command, arguments)?;
        let what = format!("{what} is not supported by this version");
        Some(UnsupportedArgument { argument: what, reason: "", hint: "leave it out; see `--help`" })
    })
}

fn find_alternative(
    error: &clap::Error,
    command: &clap::Command,
    arguments: &[String],
) -> Option<UnsupportedArgument> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = flag.split('=').next().filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let path = command_path(command, arguments);
    let meant = |one: &&Alternative| one.commands.contains(&path.as_str()) && one.flags.contains(&flag);
    let Alternative { reason: why, hint, .. } = ALTERNATIVES.iter().find(meant)?;
    Some(UnsupportedArgument {
        argument: format!("there is no {flag} of `warren {path}`"),
        reason: why,
        hint,
    })
}

/// The unsupported flag or command, if it caused the error.
fn find_unsupported(error: &clap::Error, command: &clap::Command, arguments: &[String]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let path = command_path(command, arguments);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let flag = text(ContextKind::InvalidArg)?;
            let flag = flag.split('=').next().unwrap_or(flag);
            let list = flag.strip_suffix("-add").or_else(|| flag.strip_suffix("-rm")).unwrap_or(flag);
            let (known, plain) = match path.as_str() {
                "service create" => (SERVICE_FLAGS, flag),
                "service update" => (SERVICE_FLAGS, list),
                "manager init" | "manager join" | "manager run" => (INIT_FLAGS, flag),
                "node update" | "node drain" => (NODE_FLAGS, flag),
                _ => return None,
            };
            known.contains(&plain).then(|| format!("{flag} of `warren {path}`"))
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

/// The known nouns and verbs among the arguments.
fn command_path(command: &clap::Command, arguments: &[String]) -> String {
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

    fn check(line: &str, expected: Option<&str>) {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let command = Cli::command();
        let given = std::iter::once("warren".to_owned()).chain(words.iter().cloned());
        let error = command.clone().try_get_matches_from(given).expect_err(line);
        let found = find(&error, &command, &words).map(|refusal| refusal.argument);
        let desired = expected.map(|what| format!("{what} is not supported by this version"));
        assert_eq!(found, desired, "{line}: {error}");
    }

    #[test]
    fn alternative_is_suggested() {
        let check = |line: &str, flag: &str, why: &str, hint: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let command = Cli::command();
            let given = std::iter::once("warren".to_owned()).chain(words.iter().cloned());
            let error = command.clone().try_get_matches_from(given).expect_err(line);
            let found = find(&error, &command, &words).unwrap();
            assert!(found.argument.starts_with(&format!("there is no {flag} of `warren ")), "{found:?}");
            assert!(found.reason.contains(why) && found.hint.contains(hint), "{found:?}");
        };
        let login = "`warren registry login HOST`";
        check("service create web --image=a --registry-credential=x", "--registry-credential", "host", login);
        check("service update web --registry-credential x", "--registry-credential", "host", login);
        let stdin = "--password-stdin";
        check("registry login ghcr.io --username=ann --password=x", "--password", "every user", stdin);
        check("registry login ghcr.io --username=ann -p x", "-p", "every user", stdin);
    }

    #[test]
    fn planned_flag_differs_from_typo() {
        let network = Some("--network of `warren service create`");
        check("service create web --image nginx --network front", network);
        check("service create web --network=front", network);
        check("-o json service create --dns=x web --image nginx", Some("--dns of `warren service create`"));
        check("service update web --update-delay 5s", Some("--update-delay of `warren service update`"));
        check("service update web --network-add x", Some("--network-add of `warren service update`"));
        check("service update web --resource-rm=x", Some("--resource-rm of `warren service update`"));
        check("service update web --netwrk-add x", None);
        check("node update n --taint-add a=b", Some("--taint-add of `warren node update`"));
        check("node drain n --deadline 5m", Some("--deadline of `warren node drain`"));
        check("service create web --image nginx --netwrk x", None);
        check("service ls --network x", None);
        check("manager init --taint a=b", Some("--taint of `warren manager init`"));
        check("service pause web", Some("`warren service pause`"));
        check("service updat web", None);
        check("service create web --image nginx --replicas x", None);
    }

    /// A line that was forgotten here when the flag or command came.
    #[test]
    fn no_supported_flag_is_listed() {
        let root = Cli::command();
        for line in COMMANDS {
            let mut command = Some(&root);
            for word in line.split(' ') {
                command = command.and_then(|command| command.find_subcommand(word));
            }
            assert!(command.is_none(), "{line}");
        }
        let flags = |noun: &str, verb: &str| {
            let verb = root.find_subcommand(noun).and_then(|noun| noun.find_subcommand(verb)).unwrap();
            let flags = verb.get_arguments().filter_map(clap::Arg::get_long_and_visible_aliases).flatten();
            flags.map(|flag| format!("--{flag}")).collect::<Vec<String>>()
        };
        assert!(flags("service", "create").contains(&"--publish".to_owned()));
        for (noun, verb, unsupported) in [
            ("service", "create", SERVICE_FLAGS),
            ("service", "update", SERVICE_FLAGS),
            ("manager", "init", INIT_FLAGS),
            ("node", "update", NODE_FLAGS),
            ("node", "drain", NODE_FLAGS),
        ] {
            for flag in flags(noun, verb) {
                let plain = flag.trim_end_matches("-add").trim_end_matches("-rm");
                let listed = unsupported.contains(&flag.as_str()) || unsupported.contains(&plain);
                assert!(!listed, "{noun} {verb} {flag}");
            }
        }
        assert!(SERVICE_FLAGS.is_sorted() && COMMANDS.is_sorted() && INIT_FLAGS.is_sorted());
        assert!(NODE_FLAGS.is_sorted());
    }
}
