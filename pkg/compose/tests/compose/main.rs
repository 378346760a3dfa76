//! Loads projects from files in memory.

#![allow(clippy::unwrap_used)]

mod beyond_specs;
mod canonical;
mod errors;
mod examples;
mod extends;
mod include;
mod keys;
mod merge;
mod profiles;
mod stack;
mod variables;
mod work;

use std::path::Path;

use warren_compose::{ComposeProblem, Project, ProjectSource, load};

/// Loads `files`, of which those whose names begin with `compose` are given on the command line.
pub fn load_with(
    files: &[(&str, &str)],
    change: impl FnOnce(&mut ProjectSource),
) -> Result<Project, Vec<ComposeProblem>> {
    let given = files.iter().filter(|(name, _)| name.starts_with("compose"));
    let mut source = ProjectSource {
        files: given.map(|(name, _)| name.into()).collect(),
        working_directory: "/app".into(),
        ..ProjectSource::default()
    };
    change(&mut source);
    let read = |path: &Path| {
        let found = files.iter().find(|(name, _)| Path::new("/app").join(name) == path);
        Ok(found.map(|(_, text)| (*text).to_owned()))
    };
    load(&source, &read)
}

/// Loads files without variables and profiles.
pub fn loaded(files: &[(&str, &str)]) -> Result<Project, Vec<ComposeProblem>> {
    load_with(files, |_| {})
}

/// The project as JSON, which must be loaded without problems.
pub fn json(project: &Result<Project, Vec<ComposeProblem>>) -> serde_json::Value {
    match project {
        Ok(project) => serde_json::to_value(project).unwrap(),
        Err(problems) => panic!("{}", lines(problems)),
    }
}

/// The JSON of one service.
pub fn service(project: &Result<Project, Vec<ComposeProblem>>, name: &str) -> serde_json::Value {
    json(project)["services"][name].clone()
}

/// One problem per line.
pub fn lines(problems: &[ComposeProblem]) -> String {
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

/// The problems of one file.
pub fn problems(text: &str) -> String {
    lines(&loaded(&[("compose.yaml", text)]).expect_err(text))
}

/// The warnings of one file.
pub fn warnings(text: &str) -> String {
    lines(&loaded(&[("compose.yaml", text)]).unwrap_or_else(|found| panic!("{}", lines(&found))).warnings)
}

/// A file with one service `web` that has an image and these keys.
pub fn web(keys: &str) -> String {
    let keys: String = keys.lines().map(|line| format!("    {line}\n")).collect();
    format!("services:\n  web:\n    image: web\n{keys}")
}
