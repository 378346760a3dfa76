//! `warren completion ...`, and the command that its scripts call for each completion.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Command, CommandFactory};
use warren_client::{Client, Contexts, Error, TaskFilter, VolumeListOptions};
use warren_types::SecretObjectKind;

use super::stack::members;
use crate::args::completion::{Completion, NameKind, complete};
use crate::args::{Cli, CompletionShell, GlobalArgs, docker};
use crate::connect::{connect, contexts_file};
use crate::failure::CommandError;
use crate::output;
use crate::view::task;

/// Somebody waits at a prompt: a cluster that has not answered by then has no names.
const DEADLINE: Duration = Duration::from_millis(500);

/// Prints the script for a shell.
pub fn script(shell: CompletionShell) -> Result<(), CommandError> {
    output::print(match shell {
        CompletionShell::Bash => include_str!("completion/warren.bash"),
        CompletionShell::Zsh => include_str!("completion/warren.zsh"),
        CompletionShell::Fish => include_str!("completion/warren.fish"),
    })
}

/// Prints `words` or `files`, and a line per candidate with its description behind a tab. It never fails: there are
/// no names then.
pub async fn candidates(global: &GlobalArgs, words: &[String]) -> Result<(), CommandError> {
    let root = Cli::command();
    let given = in_warren_form(&root, words);
    let line = complete(root, &given);
    let mut global = GlobalArgs { stale: true, ..global.clone() };
    global.context = line.context.or(global.context);
    global.manager.extend(line.managers.iter().filter_map(|address| address.parse().ok()));
    let (first, found) = match line.completion {
        Completion::Files => ("files", Vec::new()),
        Completion::Words(words) => ("words", words),
        Completion::Names { kind, prefix, suffix } => {
            let last = words.last().map(String::as_str).unwrap_or_default();
            let begun = last.strip_prefix(prefix.as_str()).unwrap_or_default();
            let names = tokio::time::timeout(DEADLINE, names(&global, kind, begun)).await.ok().flatten();
            let whole = names.unwrap_or_default().into_iter().map(|name| format!("{prefix}{name}{suffix}"));
            ("words", whole.filter(|word| word.starts_with(last)).map(|word| (word, String::new())).collect())
        }
    };
    let lines = found.into_iter().map(|(word, description)| match description.as_str() {
        "" => format!("{word}\n"),
        description => format!("{word}\t{description}\n"),
    });
    output::print(&format!("{first}\n{}", lines.collect::<String>()))
}

/// A command of Docker is completed as the command that it means.
fn in_warren_form(root: &Command, words: &[String]) -> Vec<String> {
    let (last, given) = words.split_last().map_or((None, words), |(last, given)| (Some(last), given));
    let given = docker::translate(root, given).unwrap_or_else(|| given.to_vec());
    given.into_iter().chain(last.cloned()).collect()
}

/// Names of objects of this kind, among them all that begin with `begun`.
async fn names(global: &GlobalArgs, kind: NameKind, begun: &str) -> Option<BTreeSet<String>> {
    let what = "no names were found";
    if kind == NameKind::Contexts {
        let contexts = Contexts::load(&contexts_file(what).ok()?).ok()?;
        return Some(contexts.names().map(str::to_owned).collect());
    }
    let client = connect(global, what).await.ok()?;
    if kind == NameKind::Stacks {
        return Some(members::fetch(&client, what).await.ok()?.names());
    }
    object_names(&client, kind, begun).await.ok()
}

async fn object_names(client: &Client, kind: NameKind, begun: &str) -> Result<BTreeSet<String>, Error> {
    let secret_objects = async |kind| {
        let objects = client.secret_objects(kind).list().await?;
        Ok::<_, Error>(objects.into_iter().map(|object| object.name).collect())
    };
    Ok(match kind {
        NameKind::Services => client.services().named(begun).names().await?.into_iter().collect(),
        NameKind::Tasks => {
            let filter = TaskFilter { current: true, ..TaskFilter::default() };
            client.tasks().list(filter).await?.iter().map(task::name).collect()
        }
        NameKind::Nodes => client.nodes().list().await?.into_iter().map(|node| node.name).collect(),
        NameKind::Networks => client.networks().list().await?.into_iter().map(|one| one.name).collect(),
        NameKind::Volumes => {
            let volumes = client.volumes().list(VolumeListOptions::default()).await?;
            volumes.into_iter().map(|volume| volume.name).collect()
        }
        NameKind::Secrets => secret_objects(SecretObjectKind::Secret).await?,
        NameKind::Configs => secret_objects(SecretObjectKind::Config).await?,
        NameKind::Tokens => client.tokens().list().await?.into_iter().map(|token| token.id).collect(),
        NameKind::Stacks | NameKind::Contexts => BTreeSet::new(),
    })
}
