//! Flags and commands that this version does not support, and flags with an alternative: they get a specific error
//! instead of a usage error. When a version supports one, remove its line here.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of `service create`, and of `service update`, where list flags end in `-add` and `-rm`.
const SERVICE_FLAGS: &[&str] = &[
    "--affinity",
    "--anti-affinity",
    "--backoff-limit",
    "--canary-steps",
    "--completions",
    "--credential-spec",
    "--deadline",
    "--dns-option",
    "--generic-resource",
    "--gpus",
    "--isolation",
    "--log-driver",
    "--log-opt",
    "--overlap",
    "--parallelism",
    "--priority",
    "--progress-deadline",
    "--resource",
    "--schedule",
    "--strategy",
    "--timezone",
];

/// Flags of `node update` and `node drain`.
const NODE_FLAGS: &[&str] = &["--deadline"];

/// Commands, with their noun.
const COMMANDS: &[&str] = &["cluster health", "service pause", "service promote", "service resume"];

/// Flags of other tools that Warren replaces by another way.
const ALTERNATIVES: &[Alternative] = &[
    Alternative {
        commands: &["stack config"],
        flags: &["--build"],
        reason: "it only shows what would be deployed",
        hint: "use `warren deploy --build`",
    },
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
    Alternative {
        commands: &["service create", "service update"],
        flags: &["--with-registry-auth"],
        reason: "the cluster stores credentials, and nodes use them for every pull from their registry",
        hint: "store them once with `warren registry login HOST`",
    },
    Alternative {
        commands: &["service create", "service update"],
        flags: &["--no-resolve-image"],
        reason: "all tasks of a revision run the digest that the tag has when it is resolved",
        hint: "leave it out, or give --resolve-image worker if managers do not reach the registry",
    },
    Alternative {
        commands: &["service update"],
        flags: &["--args"],
        reason: "arguments are words, not one text that is split",
        hint: "give them after --, or one per --arg",
    },
];

/// Commands of other tools, and the alternative.
const COMMAND_ALTERNATIVES: &[CommandAlternative] = &[
    CommandAlternative {
        commands: &["compose", "up", "down"],
        reason: "an application of several services is a stack",
        hint: "use `warren deploy -c compose.yaml STACK`, and see `warren stack --help`",
    },
    CommandAlternative {
        commands: &["swarm", "init", "join"],
        reason: "a cluster starts with its first manager, and other machines join it with a token",
        hint: "use `warren manager init`, `warren token create`, `warren worker join` and `warren worker leave`",
    },
    CommandAlternative {
        commands: &["run"],
        reason: "containers run as tasks of services, in the background and with a name",
        hint: "use `warren service create NAME --image IMAGE`, or `warren run --detach --name NAME IMAGE` with flags \
               that `service create` has",
    },
    CommandAlternative {
        commands: &["create", "service run", "service deploy"],
        reason: "containers run as tasks of services",
        hint: "use `warren service create NAME --image IMAGE`",
    },
    CommandAlternative {
        commands: &["container", "port", "wait"],
        reason: "containers are shown as tasks",
        hint: "use `warren task ls`, `warren service ps SERVICE` or `warren node ps NODE`",
    },
    CommandAlternative {
        commands: &["kill"],
        reason: "containers are reached through their service or task",
        hint: "see `warren service --help` and `warren task --help`",
    },
    CommandAlternative {
        commands: &[
            "load",
            "image load",
            "import",
            "save",
            "push",
            "build",
            "buildx",
            "commit",
            "rmi",
            "tag",
        ],
        reason: "images come from registries and archives",
        hint: "see `warren image --help`",
    },
    CommandAlternative {
        commands: &["ls", "get", "describe", "delete", "scale", "info"],
        reason: "commands start with the kind of object",
        hint: "use for example `warren service ls` or `warren cluster info`; see `warren --help`",
    },
    CommandAlternative {
        commands: &["start", "stop", "pause", "unpause"],
        reason: "the number of tasks of a service says what runs",
        hint: "use `warren service scale SERVICE=N`; with 0 its tasks are stopped",
    },
    CommandAlternative {
        commands: &["stats"],
        reason: "resource usage is shown per task",
        hint: "use `warren service top`",
    },
    CommandAlternative {
        commands: &["update", "rename"],
        reason: "containers run as tasks of services",
        hint: "use `warren service update SERVICE`; a service keeps its name",
    },
    CommandAlternative {
        commands: &["logout"],
        reason: "the cluster stores credentials",
        hint: "use `warren registry rm HOST`",
    },
    CommandAlternative {
        commands: &["network connect", "network disconnect"],
        reason: "services are connected, and their tasks follow",
        hint: "use `warren service update SERVICE --network-add NETWORK` or `--network-rm NETWORK`",
    },
    CommandAlternative {
        commands: &["worker token", "manager token"],
        reason: "join tokens are objects that expire",
        hint: "use `warren token create --role worker` or `--role manager`",
    },
];

/// Commands of other tools, and the alternative.
struct CommandAlternative {
    commands: &'static [&'static str],
    reason: &'static str,
    hint: &'static str,
}

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
    let path = command_path(command, arguments);
    if let Some(image) = image_argument(error, &path) {
        return Some(image);
    }
    if let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(unknown))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand))
    {
        let whole = format!("{path} {unknown}");
        let whole = whole.trim_start();
        let known = COMMAND_ALTERNATIVES.iter().find(|one| one.commands.contains(&whole))?;
        let argument = format!("there is no `warren {whole}`");
        return Some(UnsupportedArgument { argument, reason: known.reason, hint: known.hint });
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = flag.split('=').next().filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let meant = |one: &&Alternative| one.commands.contains(&path.as_str()) && one.flags.contains(&flag);
    let Alternative { reason: why, hint, .. } = ALTERNATIVES.iter().find(meant)?;
    Some(UnsupportedArgument {
        argument: format!("there is no {flag} of `warren {path}`"),
        reason: why,
        hint,
    })
}

/// An image without its flag, as in `docker service create --name web nginx`.
fn image_argument(error: &clap::Error, path: &str) -> Option<UnsupportedArgument> {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_meant = path == "service create"
        && match error.kind() {
            ErrorKind::UnknownArgument => !given.starts_with('-'),
            ErrorKind::ArgumentConflict => given.starts_with('[') || given.starts_with("--name"),
            _ => false,
        };
    is_meant.then(|| UnsupportedArgument {
        argument: "`warren service create` takes the name of the service and no other word".to_owned(),
        reason: "the image is a flag, and the arguments of the container follow --",
        hint: "use `warren service create NAME --image IMAGE -- ARGS`",
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
        check("service update web --with-registry-auth", "--with-registry-auth", "every pull", login);
        check("service update web --args x", "--args", "words", "after --");
        check("service update web --registry-credential x", "--registry-credential", "host", login);
        let stdin = "--password-stdin";
        check("registry login ghcr.io --username=ann --password=x", "--password", "every user", stdin);
        check("registry login ghcr.io --username=ann -p x", "-p", "every user", stdin);
    }

    #[test]
    fn command_of_another_tool_gets_the_warren_command() {
        for (line, hint) in [
            ("compose up", "`warren deploy -c compose.yaml STACK`"),
            ("swarm init", "`warren manager init`"),
            ("run nginx", "`warren service create NAME --image IMAGE`"),
            ("container ls", "`warren task ls`"),
            ("stop web", "`warren service scale SERVICE=N`"),
            ("stats", "`warren service top`"),
            ("rename a b", "`warren service update SERVICE`"),
            ("logout ghcr.io", "`warren registry rm HOST`"),
            ("network connect back web", "--network-add NETWORK"),
            ("rmi nginx", "`warren image --help`"),
            ("kill web", "`warren task --help`"),
            ("service create web nginx", "--image IMAGE -- ARGS"),
            ("service create --name web nginx:1.27 nginx -g x", "--image IMAGE -- ARGS"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let command = Cli::command();
            let given = std::iter::once("warren".to_owned()).chain(words.iter().cloned());
            let error = command.clone().try_get_matches_from(given).expect_err(line);
            let found = find(&error, &command, &words).unwrap_or_else(|| panic!("{line}: {error}"));
            assert!(found.hint.contains(hint), "{line}: {found:?}");
        }
    }

    #[test]
    fn planned_flag_differs_from_typo() {
        let priority = Some("--priority of `warren service create`");
        check("service create web --image nginx --priority 3", priority);
        check("service create web --priority=3", priority);
        check("-o json service create --gpus=x web --image nginx", Some("--gpus of `warren service create`"));
        check("service update web --resource-rm=x", Some("--resource-rm of `warren service update`"));
        check("service update web --netwrk-add x", None);
        check("node drain n --deadline 5m", Some("--deadline of `warren node drain`"));
        check("service create web --image nginx --netwrk x", None);
        check("service ls --network x", None);
        check("service pause web", Some("`warren service pause`"));
        check("service updat web", None);
        check("service create web --image nginx --replicas x", None);
    }

    /// A line that was not removed when the flag or command was added.
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
            ("node", "update", NODE_FLAGS),
            ("node", "drain", NODE_FLAGS),
        ] {
            for flag in flags(noun, verb) {
                let plain = flag.trim_end_matches("-add").trim_end_matches("-rm");
                let listed = unsupported.contains(&flag.as_str()) || unsupported.contains(&plain);
                assert!(!listed, "{noun} {verb} {flag}");
            }
        }
        for line in COMMAND_ALTERNATIVES.iter().flat_map(|one| one.commands) {
            let mut command = Some(&root);
            for word in line.split(' ') {
                command = command.and_then(|command| command.find_subcommand(word));
            }
            assert!(command.is_none(), "{line}");
        }
        assert!(SERVICE_FLAGS.is_sorted() && COMMANDS.is_sorted());
        assert!(NODE_FLAGS.is_sorted());
    }
}
