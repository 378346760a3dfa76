//! Files of the kind that projects publish, with what they mean: `examples/NAME/expected.txt` has the warnings and the
//! canonical form, or the problems. `UPDATE_EXAMPLES=1` writes it for review.

use std::path::{Path, PathBuf};

use warren_compose::stack::stack;
use warren_compose::{ProjectSource, load};

use crate::lines;

/// The directory in which each example is thought to be.
const DIRECTORY: &str = "/srv/example";

fn examples() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compose/examples");
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// The files of an example as `warren deploy` finds them.
fn source(example: &Path) -> ProjectSource {
    let files =
        ["compose.yaml", "compose.override.yaml"].into_iter().filter(|name| example.join(name).is_file());
    ProjectSource {
        files: files.map(PathBuf::from).collect(),
        working_directory: DIRECTORY.into(),
        variables: [("GRAFANA_PASSWORD".to_owned(), "secret".to_owned())].into(),
        ..ProjectSource::default()
    }
}

/// The warnings and the canonical form, or the problems.
fn meaning(example: &Path) -> Result<(String, String), String> {
    let read = |path: &Path| {
        let path = example.join(path.strip_prefix(DIRECTORY).unwrap());
        Ok(path.is_file().then(|| std::fs::read_to_string(path).unwrap()))
    };
    let project = load(&source(example), &read).map_err(|problems| lines(&problems))?;
    let objects = stack(&project, &"shop".parse().unwrap()).map_err(|problems| lines(&problems))?;
    let warnings = [lines(&project.warnings), lines(&objects.warnings)].concat();
    Ok((warnings, serde_saphyr::to_string(&project).unwrap()))
}

#[test]
fn published_files_mean_what_was_reviewed() {
    let examples = examples();
    assert!(examples.len() >= 20, "{examples:?}");
    for example in examples {
        let found = match meaning(&example) {
            Ok((warnings, text)) => format!("{warnings}---\n{text}"),
            Err(problems) => format!("refused:\n{problems}"),
        };
        let path = example.join("expected.txt");
        if std::env::var_os("UPDATE_EXAMPLES").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(found, expected, "{}", example.display());
    }
}

/// The canonical form is a Compose file with the same meaning.
#[test]
fn canonical_form_of_published_files_means_the_same() {
    for example in examples() {
        let Ok((_, text)) = meaning(&example) else { continue };
        let source = ProjectSource { files: vec!["compose.yaml".into()], ..source(&example) };
        let read = |path: &Path| Ok(path.ends_with("compose.yaml").then(|| text.clone()));
        let again = load(&source, &read).unwrap_or_else(|why| panic!("{example:?}: {}\n{text}", lines(&why)));
        assert_eq!(serde_saphyr::to_string(&again).unwrap(), text, "{}", example.display());
    }
}
