//! What can follow on a command line. The candidates come from the definition of the commands; where the name of an
//! object follows, [`Completion::Names`] says which kind, and the caller asks the cluster.

use clap::{Arg, Command, ValueHint};

/// What a shell can offer for the last word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// Whole words, each with a description (which may be empty).
    Words(Vec<(String, String)>),
    /// Names of objects, each with `prefix` before it and `suffix` behind it.
    Names { kind: NameKind, prefix: String, suffix: &'static str },
    /// Paths on this machine.
    Files,
}

/// The objects whose names can follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    Services,
    Tasks,
    Nodes,
    Networks,
    Volumes,
    Secrets,
    Configs,
    Stacks,
    Tokens,
    Contexts,
}

/// A command line up to the word that is completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletedLine {
    pub completion: Completion,
    /// The value of `--context`.
    pub context: Option<String>,
    /// The values of `--manager`.
    pub managers: Vec<String>,
}

/// What follows `words` (without the program name), of which the last is incomplete and may be empty.
pub fn complete(mut root: Command, words: &[String]) -> CompletedLine {
    root.build();
    let (last, given) = words.split_last().map_or(("", words), |(last, given)| (last.as_str(), given));
    let mut line =
        CompletedLine { completion: Completion::Words(Vec::new()), context: None, managers: Vec::new() };
    let (mut command, mut path, mut positionals) = (&root, String::new(), 0);
    let (mut value_of, mut only_positionals) = (None::<&Arg>, false);
    for word in given {
        if let Some(flag) = value_of.take() {
            line.note(flag, word);
        } else if word == "--" && !only_positionals {
            only_positionals = true;
        } else if word.starts_with('-') && word.len() > 1 && !only_positionals {
            match (flag_of(command, word), word.split_once('=')) {
                (Some(flag), Some((_, value))) => line.note(flag, value),
                (Some(flag), None) if flag.get_action().takes_values() => value_of = Some(flag),
                _ => {}
            }
        } else if let Some(inner) = command.find_subcommand(word).filter(|_| !only_positionals) {
            path = format!("{path} {}", inner.get_name());
            command = inner;
        } else {
            only_positionals |= positional(command, positionals).is_some_and(Arg::is_trailing_var_arg_set);
            positionals += 1;
        }
    }
    line.completion = match value_of {
        Some(flag) => values(flag, &path, ""),
        None if only_positionals || !last.starts_with('-') => match positional(command, positionals) {
            Some(argument) => values(argument, &path, ""),
            None => Completion::Words(subcommands(command)),
        },
        None => match last.split_once('=').and_then(|(name, _)| Some((name, flag_of(command, name)?))) {
            Some((name, flag)) => values(flag, &path, &format!("{name}=")),
            None => Completion::Words(flags(command)),
        },
    };
    if let Completion::Words(words) = &mut line.completion {
        words.retain(|(word, _)| word.starts_with(last));
    }
    line
}

impl CompletedLine {
    fn note(&mut self, flag: &Arg, value: &str) {
        match flag.get_long() {
            Some("context") => self.context = Some(value.to_owned()),
            Some("manager") => self.managers.extend(value.split(',').map(str::to_owned)),
            _ => {}
        }
    }
}

/// The flag that a word names: `--flag`, `--flag=value` or `-f`.
pub fn flag_of<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or(word);
    command.get_arguments().find(|flag| match name.strip_prefix("--") {
        Some(long) => {
            flag.get_long() == Some(long) || flag.get_all_aliases().is_some_and(|all| all.contains(&long))
        }
        // Several short flags in one word: only the last one can take a value.
        None => flag.get_short().is_some_and(|short| name.ends_with(short)),
    })
}

/// The positional argument that the word after `before` others belongs to.
fn positional(command: &Command, before: usize) -> Option<&Arg> {
    let last = command.get_positionals().last();
    let repeated = last.filter(|last| matches!(last.get_action(), clap::ArgAction::Append));
    command.get_positionals().nth(before).or(repeated)
}

fn subcommands(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    shown.map(|inner| (inner.get_name().to_owned(), first_line(inner.get_about()))).collect()
}

fn flags(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_arguments().filter(|flag| !flag.is_hide_set());
    shown.filter_map(|flag| Some((format!("--{}", flag.get_long()?), first_line(flag.get_help())))).collect()
}

fn first_line(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).and_then(|text| text.lines().next().map(str::to_owned)).unwrap_or_default()
}

/// The values of an argument of the command `path` (` service ls`).
fn values(argument: &Arg, path: &str, prefix: &str) -> Completion {
    let possible = argument.get_possible_values();
    if !possible.is_empty() && argument.get_action().takes_values() {
        let shown = possible.iter().filter(|value| !value.is_hide_set());
        let word = |name: &str| format!("{prefix}{name}");
        return Completion::Words(
            shown.map(|value| (word(value.get_name()), first_line(value.get_help()))).collect(),
        );
    }
    let value_name =
        argument.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    let names = |kind, suffix| Completion::Names { kind, prefix: prefix.to_owned(), suffix };
    let verb = path.rsplit(' ').next().unwrap_or_default();
    if path == " service create" && argument.is_positional() {
        return Completion::Words(Vec::new());
    }
    match (argument.get_long().unwrap_or_default(), value_name) {
        ("context", _) | ("", "CONTEXT") => names(NameKind::Contexts, ""),
        ("service", "NAME|ID") | ("", "SERVICE" | "[NOUN/]NAME") => names(NameKind::Services, ""),
        ("", "SERVICE=N") => names(NameKind::Services, "="),
        ("node", "NAME|ID") | ("", "NODE") => names(NameKind::Nodes, ""),
        ("", "TASK") => names(NameKind::Tasks, ""),
        ("", "VOLUME") => names(NameKind::Volumes, ""),
        ("", "STACK") => names(NameKind::Stacks, ""),
        ("", "TOKEN") => names(NameKind::Tokens, ""),
        ("network" | "network-add" | "network-rm", _) | ("", "NETWORK") => names(NameKind::Networks, ""),
        ("secret" | "secret-add" | "secret-rm", _) => names(NameKind::Secrets, ""),
        ("config" | "config-add" | "config-rm", _) => names(NameKind::Configs, ""),
        ("", "NAME") if path.starts_with(" secret ") && verb != "create" => names(NameKind::Secrets, ""),
        ("", "NAME") if path.starts_with(" config ") && verb != "create" => names(NameKind::Configs, ""),
        (_, "FILE" | "FILE|-" | "DIR" | "PATH" | "SOURCE" | "DESTINATION" | "ARCHIVE") => Completion::Files,
        _ if matches!(
            argument.get_value_hint(),
            ValueHint::FilePath | ValueHint::DirPath | ValueHint::AnyPath
        ) =>
        {
            Completion::Files
        }
        _ => Completion::Words(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn completed(line: &str) -> CompletedLine {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        complete(Cli::command(), &words)
    }

    fn words(line: &str) -> Vec<String> {
        match completed(line).completion {
            Completion::Words(words) => words.into_iter().map(|(word, _)| word).collect(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn commands_flags_and_values_complete() {
        for (line, expected) in [
            ("serv", &["service"] as &[&str]),
            ("service ins", &["inspect"]),
            ("-o json service ins", &["inspect"]),
            ("service inspect --out", &["--output"]),
            ("service create web --repli", &["--replicas"]),
            ("service ls -o j", &["json"]),
            ("service ls --output=j", &["--output=json"]),
            ("completion f", &["fish"]),
            ("service create w", &[]),
            ("service inspect web --nothing-", &[]),
            ("__comp", &[]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
    }

    #[test]
    fn names_complete_where_objects_are_named() {
        for (line, kind, prefix, suffix) in [
            ("service inspect ", NameKind::Services, "", ""),
            ("service rm a ", NameKind::Services, "", ""),
            ("why ", NameKind::Services, "", ""),
            ("service scale w", NameKind::Services, "", "="),
            ("task ls --service ", NameKind::Services, "", ""),
            ("task ls --node=n", NameKind::Nodes, "--node=", ""),
            ("node drain ", NameKind::Nodes, "", ""),
            ("task exec ", NameKind::Tasks, "", ""),
            ("network rm ", NameKind::Networks, "", ""),
            ("service update web --network-add ", NameKind::Networks, "", ""),
            ("volume inspect ", NameKind::Volumes, "", ""),
            ("secret rm ", NameKind::Secrets, "", ""),
            ("config inspect a ", NameKind::Configs, "", ""),
            ("stack ps ", NameKind::Stacks, "", ""),
            ("token rm ", NameKind::Tokens, "", ""),
            ("--context ", NameKind::Contexts, "", ""),
            ("context use ", NameKind::Contexts, "", ""),
        ] {
            let expected = Completion::Names { kind, prefix: prefix.to_owned(), suffix };
            assert_eq!(completed(line).completion, expected, "{line}");
        }
        assert_eq!(completed("secret create a ").completion, Completion::Files);
        assert_eq!(words("secret create a"), [""; 0]);
        assert_eq!(words("task exec t ls -"), [""; 0]);
    }

    #[test]
    fn connection_flags_are_found() {
        let line = completed("--context prod --manager=a:1,b:2 service inspect ");
        assert_eq!(
            (line.context.as_deref(), line.managers),
            (Some("prod"), vec!["a:1".into(), "b:2".into()])
        );
    }
}
