//! Forbidden words: marks of unfinished work, and references that mean nothing to a reader who has only the
//! repository.

use crate::source::SourceFile;

/// Forbidden everywhere, in any case. Written in parts, so that this file passes.
const ANYWHERE: [&str; 9] = [
    concat!("/wo", "rk/main"),
    concat!("/wo", "rk/shared"),
    concat!("an", "thropic"),
    concat!("cl", "aude"),
    concat!("chat", "gpt"),
    concat!("open", "ai"),
    concat!("language", " model"),
    concat!("fix", "me"),
    concat!("work", "er-facts"),
];

/// Forbidden as separate words in exactly this case.
const WORDS: [&str; 7] = [
    concat!("TO", "DO"),
    concat!("A", "I"),
    concat!("L", "LM"),
    concat!("DESIGN", ".md"),
    concat!("STYLE", ".md"),
    concat!("CRATES", ".md"),
    concat!("PRODUCT", ".md"),
];

/// Lines with a forbidden word.
#[must_use]
pub fn forbidden_words(sources: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        for (index, line) in source.text.lines().enumerate() {
            let lower = line.to_lowercase();
            let anywhere = ANYWHERE.iter().filter(|word| lower.contains(**word));
            let alone = WORDS.iter().filter(|word| stands_alone(line, word));
            let found: Vec<&str> = anywhere.chain(alone).copied().chain(issue_number(&lower)).collect();
            violations.extend(
                found.iter().map(|word| format!("{}:{}: {word} is forbidden", source.path, index + 1)),
            );
        }
    }
    violations
}

fn stands_alone(line: &str, word: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(is_letter) && !after.is_some_and(is_letter)
    })
}

/// A reference to this project's tracker: numbers of other projects have more digits.
fn issue_number(line: &str) -> Option<&str> {
    let mark = concat!("iss", "ue ");
    line.match_indices(mark).find_map(|(start, _)| {
        let rest = &line[start + mark.len()..];
        let digits = rest.chars().take_while(char::is_ascii_digit).count();
        (1..=2).contains(&digits).then(|| &line[start..start + mark.len() + digits])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;
    use crate::source::{files, sample};

    #[test]
    fn no_forbidden_word() {
        let endings = [".rs", ".md", ".toml", ".proto", ".sh", "Makefile", ".ci/run"];
        assert_none(&forbidden_words(&files(&endings)));
    }

    #[test]
    fn forbidden_word_is_named() {
        for word in ANYWHERE.iter().chain(&WORDS) {
            assert_eq!(forbidden_words(&[sample("a.rs", &format!("see {word}: it"))]).len(), 1, "{word}");
        }
        assert_eq!(forbidden_words(&[sample("a.rs", concat!("iss", "ue 2"))]).len(), 1);
        assert_none(&forbidden_words(&[sample(
            "a.rs",
            concat!("containerd iss", "ue 8272, AIR, CHAIN, TODOS"),
        )]));
    }
}
