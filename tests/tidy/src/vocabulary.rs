//! Words that the glossary refuses, since another word has their meaning.

use crate::source::SourceFile;

/// The vocabulary. It is the one file that may have the refused words.
pub const GLOSSARY: &str = "docs/glossary.md";

/// The section of the glossary whose table has the words in its first column, and what to write in its second.
const SECTION: &str = "## Refused words";

/// A word that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedWord {
    /// With a capital it is refused as a whole identifier in exactly this case, otherwise as a word in any case, also
    /// between the underscores of an identifier.
    pub word: String,
    /// What to write.
    pub instead: String,
}

/// The words that the glossary refuses: those in backticks in the first column of its table.
#[must_use]
pub fn refused_words(glossary: &str) -> Vec<RefusedWord> {
    let section = glossary.lines().skip_while(|line| *line != SECTION).skip(1);
    let rows = section.take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with('|'));
    let mut found = Vec::new();
    for row in rows {
        let mut columns = row.trim_matches('|').split('|').map(str::trim);
        let (words, instead) = (columns.next().unwrap_or_default(), columns.next().unwrap_or_default());
        let words = words.split('`').skip(1).step_by(2);
        found.extend(words.map(|word| RefusedWord { word: word.to_owned(), instead: instead.to_owned() }));
    }
    found
}

/// Lines with a refused word.
#[must_use]
pub fn refused_uses(sources: &[SourceFile], refused: &[RefusedWord]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources.iter().filter(|source| source.path != GLOSSARY) {
        for (index, line) in source.text.lines().enumerate() {
            let lower = line.to_lowercase();
            for RefusedWord { word, instead } in refused {
                if has_word(line, &lower, word) {
                    let at = format!("{}:{}", source.path, index + 1);
                    violations.push(format!("{at}: {GLOSSARY} refuses {word}: write {instead}"));
                }
            }
        }
    }
    violations
}

fn has_word(line: &str, lower: &str, word: &str) -> bool {
    let is_identifier = word.contains(|letter: char| letter.is_uppercase());
    let line = if is_identifier { line } else { lower };
    let is_inside = |letter: char| letter.is_alphanumeric() || (is_identifier && letter == '_');
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(is_inside) && !after.is_some_and(is_inside)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;
    use crate::source::{files, root, sample};

    #[test]
    fn no_refused_word_is_used() {
        let refused = refused_words(&std::fs::read_to_string(root().join(GLOSSARY)).unwrap());
        assert!(refused.len() > 10, "{GLOSSARY} has no table of refused words");
        assert_none(&refused_uses(&files(&[".rs", ".proto", ".md", ".sh"]), &refused));
    }

    #[test]
    fn table_of_glossary_is_read() {
        let text = "# Glossary\n| `kept` | x |\n## Refused words\nText.\n\n| refused | write |\n|---|---|\n\
                    | `Old`, `older` | `New` |\n## Later\n| `free` | x |\n";
        let refused = |word: &str| RefusedWord { word: word.to_owned(), instead: "`New`".to_owned() };
        assert_eq!(refused_words(text), [refused("Old"), refused("older")]);
    }

    #[test]
    fn refused_word_is_named() {
        let refused = ["Gizmos", "outmoded"]
            .map(|word| RefusedWord { word: word.to_owned(), instead: "new".to_owned() });
        let found = |text: &str| refused_uses(&[sample("a.rs", text)], &refused);
        for text in [
            "let x: Gizmos = y;",
            "serve::Gizmos",
            "is outmoded.",
            "Outmoded",
            "outmoded_by: u64",
            "is_outmoded()",
        ] {
            assert_eq!(found(text).len(), 1, "{text}");
        }
        for text in ["the gizmos", "MyGizmos", "Gizmos_a", "outmodedness", "Outmodeds"] {
            assert_none(&found(text));
        }
        assert_eq!(found("\nGizmos"), ["a.rs:2: docs/glossary.md refuses Gizmos: write new"]);
        assert_none(&refused_uses(&[sample(GLOSSARY, "| `Gizmos` |")], &refused));
    }
}
