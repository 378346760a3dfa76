//! What Warren will have and this version does not, and what it will never have though people may look for it: named,
//! so that it is refused as what it is and not as a typing error. When a later version supports something, its line
//! here goes.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of `service create`, and of `service update`, where lists have `-add` and `-rm` behind them.
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

/// Commands, each with the noun before it.
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

/// What people may look for and will not find, because it is done in another way.
const OTHERWISE: &[Otherwise] = &[
    Otherwise {
        commands: &["service create", "service update"],
        flags: &["--registry-credential"],
        why: "credentials are chosen by the registry's host in the image",
        hint: "give them once with `warren registry login HOST`",
    },
    Otherwise {
        commands: &["registry login"],
        flags: &["--password", "-p"],
        why: "a password on the command line is seen by everybody on this machine and kept by the shell",
        hint: "give --password-stdin, or neither to be asked for it",
    },
];

/// Flags of some commands, and what to do instead.
struct Otherwise {
    commands: &'static [&'static str],
    flags: &'static [&'static str],
    why: &'static str,
    hint: &'static str,
}

/// What of a command line is refused by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What there is not.
    pub what: String,
    /// Why not; empty when it is only not there yet.
    pub why: &'static str,
    /// What to do instead.
    pub hint: &'static str,
}

/// What of `arguments` (without the program's name) is refused by name, if that is what `error`, which `command`
/// answered to them, is about.
pub fn find(error: &clap::Error, command: &clap::Command, arguments: &[String]) -> Option<Refusal> {
    done_otherwise(error, command, arguments).or_else(|| {
        let what = unsupported(error, command, arguments)?;
        let what = format!("{what} is not supported by this version");
        Some(Refusal { what, why: "", hint: "leave it out; `--help` lists what there is" })
    })
}

fn done_otherwise(error: &clap::Error, command: &clap::Command, arguments: &[String]) -> Option<Refusal> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = flag.split('=').next().filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let path = path(command, arguments);
    let meant = |one: &&Otherwise| one.commands.contains(&path.as_str()) && one.flags.contains(&flag);
    let Otherwise { why, hint, .. } = OTHERWISE.iter().find(meant)?;
    Some(Refusal { what: format!("there is no {flag} of `warren {path}`"), why, hint })
}

/// What of them this version does not have yet.
fn unsupported(error: &clap::Error, command: &clap::Command, arguments: &[String]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let path = path(command, arguments);
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
        let found = find(&error, &command, &words).map(|refusal| refusal.what);
        let wanted = wanted.map(|what| format!("{what} is not supported by this version"));
        assert_eq!(found, wanted, "{line}: {error}");
    }

    #[test]
    fn what_is_done_in_another_way_says_how() {
        let check = |line: &str, flag: &str, why: &str, hint: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let command = Cli::command();
            let given = std::iter::once("warren".to_owned()).chain(words.iter().cloned());
            let error = command.clone().try_get_matches_from(given).expect_err(line);
            let found = find(&error, &command, &words).unwrap();
            assert!(found.what.starts_with(&format!("there is no {flag} of `warren ")), "{found:?}");
            assert!(found.why.contains(why) && found.hint.contains(hint), "{found:?}");
        };
        let login = "`warren registry login HOST`";
        check("service create web --image=a --registry-credential=x", "--registry-credential", "host", login);
        check("service update web --registry-credential x", "--registry-credential", "host", login);
        let stdin = "--password-stdin";
        check("registry login ghcr.io --username=ann --password=x", "--password", "everybody", stdin);
        check("registry login ghcr.io --username=ann -p x", "-p", "everybody", stdin);
    }

    #[test]
    fn what_is_to_come_is_told_from_what_is_mistyped() {
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
    fn nothing_that_is_supported_is_listed() {
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
