//! Replaces the suggestions of clap, which compares whole words loosely and suggests `--output` for `--mount`.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The shortest part of a flag or command that stands for the whole one.
const MIN_PREFIX: usize = 3;

/// The error with the flag or command that was probably meant, or without a suggestion.
pub fn refine(mut error: clap::Error, command: &clap::Command, arguments: &[String]) -> clap::Error {
    let (invalid, suggested) = match error.kind() {
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        _ => return error,
    };
    let Some(ContextValue::String(given)) = error.get(invalid).cloned() else { return error };
    error.remove(suggested);
    // "to pass '--x' as a value, use '-- --x'": in `service create` it would become an argument of the container.
    error.remove(ContextKind::Suggested);
    let inner = deepest(command, arguments);
    if error.kind() == ErrorKind::InvalidSubcommand {
        if let Some(meant) = nearest(&given, subcommands(inner)) {
            error.insert(suggested, ContextValue::Strings(vec![meant]));
        }
        return error;
    }
    let flag = given.split('=').next().and_then(|flag| flag.strip_prefix("--"));
    if let Some(meant) = flag.and_then(|flag| nearest(flag, flags(command, inner))) {
        error.insert(suggested, ContextValue::String(format!("--{meant}")));
    }
    error
}

/// The command that the arguments name.
fn deepest<'a>(mut command: &'a clap::Command, arguments: &[String]) -> &'a clap::Command {
    for argument in arguments {
        command = command.find_subcommand(argument).unwrap_or(command);
    }
    command
}

fn subcommands(command: &clap::Command) -> impl Iterator<Item = &str> {
    command.get_subcommands().flat_map(|one| std::iter::once(one.get_name()).chain(one.get_all_aliases()))
}

/// The long flags of a command, with those that every command has.
fn flags<'a>(root: &'a clap::Command, command: &'a clap::Command) -> impl Iterator<Item = &'a str> {
    let global = root.get_arguments().filter(|flag| flag.is_global_set());
    command
        .get_arguments()
        .chain(global)
        .flat_map(|flag| flag.get_long().into_iter().chain(flag.get_all_aliases().into_iter().flatten()))
}

/// The most similar word: one or two letters differ, or `given` is its beginning.
pub fn nearest<'a>(given: &str, words: impl Iterator<Item = &'a str>) -> Option<String> {
    let most = if given.len() < 6 { 1 } else { 2 };
    let rank = |word: &str| match word.starts_with(given) && given.len() >= MIN_PREFIX {
        true => Some(0),
        false => Some(distance(given, word)).filter(|distance| *distance <= most),
    };
    let ranked = words.filter_map(|word| Some((rank(word)?, word.len(), word)));
    ranked.min().map(|(_, _, word)| word.to_owned())
}

/// How many letters must be inserted, removed, replaced or swapped with their neighbour (optimal string alignment).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// What is suggested for a command line.
    fn suggested(line: &str) -> Option<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let command = Cli::command();
        let given = std::iter::once("warren".to_owned()).chain(words.iter().cloned());
        let error = refine(command.clone().try_get_matches_from(given).expect_err(line), &command, &words);
        assert!(!error.to_string().contains("as a value"), "{error}");
        match error.get(ContextKind::SuggestedArg).or(error.get(ContextKind::SuggestedSubcommand)) {
            Some(ContextValue::String(flag)) => Some(flag.clone()),
            Some(ContextValue::Strings(commands)) => commands.first().cloned(),
            _ => None,
        }
    }

    #[test]
    fn misspelled_word_gets_a_suggestion() {
        for (line, meant) in [
            ("service create web --image a --replcias 2", "--replicas"),
            ("service create web --image a --mem 64Mi", "--memory"),
            ("service create web --image a --limit-mem=64Mi", "--limit-memory"),
            ("service ls --outptu json", "--output"),
            ("service updat web", "update"),
            ("servcie ls", "service"),
            ("node promot n1", "promote"),
            ("volume lst", "ls"),
        ] {
            assert_eq!(suggested(line).as_deref(), Some(meant), "{line}");
        }
    }

    #[test]
    fn distant_word_gets_no_suggestion() {
        for line in [
            "service create web --image a --mnt x",
            "service create web --image a --isolation x",
            "service ls --limit-memory 3",
            "swarm deploy",
            "compose up",
            "node top",
            "service deploy web",
        ] {
            assert_eq!(suggested(line), None, "{line}");
        }
    }

    #[test]
    fn distance_counts_swapped_letters_once() {
        for (one, other, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("replcias", "replicas", 1),
            ("mount", "output", 4),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }
}
