//! Every command that the documentation shows is one.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::{Cli, docker};

const DOCUMENTS: [(&str, &str); 11] = [
    ("README.md", include_str!("../../../README.md")),
    ("docs/coming-from-swarm.md", include_str!("../../../docs/coming-from-swarm.md")),
    ("docs/docker-clients.md", include_str!("../../../docs/docker-clients.md")),
    ("docs/documents.md", include_str!("../../../docs/documents.md")),
    ("docs/five-minutes.md", include_str!("../../../docs/five-minutes.md")),
    ("docs/introduction.md", include_str!("../../../docs/introduction.md")),
    ("docs/operations.md", include_str!("../../../docs/operations.md")),
    ("docs/security.md", include_str!("../../../docs/security.md")),
    ("docs/three-managers.md", include_str!("../../../docs/three-managers.md")),
    ("docs/troubleshooting.md", include_str!("../../../docs/troubleshooting.md")),
    ("docs/two-machines.md", include_str!("../../../docs/two-machines.md")),
];

/// The lines of code blocks, each whole, and code within sentences with `false`: it may leave arguments out.
fn code(text: &str) -> Vec<(String, bool)> {
    let (blocks, prose): (Vec<_>, Vec<_>) =
        text.split("\n```").enumerate().partition(|(number, _)| number % 2 == 1);
    let lines = blocks.iter().flat_map(|(_, block)| {
        let whole = block.replace("\\\n", " ");
        whole.lines().map(|line| (line.to_owned(), true)).collect::<Vec<_>>()
    });
    let spans = prose.iter().flat_map(|(_, prose)| prose.split('`').skip(1).step_by(2));
    let spans = spans.map(|span| (span.to_owned(), false));
    lines.chain(spans).collect()
}

/// The words of a `warren` command in the line, without what a shell takes.
fn command(line: &str) -> Option<Vec<String>> {
    let line = line.split_once("| ").map_or(line, |(_, after)| after).trim();
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    if !line.starts_with("warren ") || line.contains("...") || line.contains('*') {
        return None;
    }
    let mut words = shlex::split(line).unwrap_or_else(|| panic!("{line:?} has an open quote"));
    words.truncate(words.iter().position(|word| word == ">").unwrap_or(words.len()));
    Some(words)
}

#[test]
fn documented_commands_are_commands() {
    let mut wrong = Vec::new();
    let mut count = 0;
    let root = Cli::command();
    for (document, text) in DOCUMENTS {
        for (line, is_whole) in code(text) {
            let Some(words) = command(&line) else { continue };
            count += 1;
            let words = docker::translate(&root, &words[1..]).unwrap_or_else(|| words[1..].to_vec());
            let refused =
                Cli::try_parse_from(std::iter::once("warren").chain(words.iter().map(String::as_str)))
                    .err()
                    .filter(clap::Error::use_stderr);
            let is_short = |error: &clap::Error| {
                let kinds =
                    [ErrorKind::MissingRequiredArgument, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];
                !is_whole && kinds.contains(&error.kind())
            };
            let refused = refused.filter(|error| !is_short(error));
            wrong.extend(refused.map(|error| format!("{document}: {}\n{error}", words.join(" "))));
        }
    }
    assert!(count > 100, "only {count} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
