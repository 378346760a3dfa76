//! Merges the environment variables of flags, files and the environment of this command.

use std::path::Path;

use warren_types::EnvVar;

use crate::args::lists::ListAdditions;
use crate::args::value::{self, EnvVariable};
use crate::failure::{CommandError, ExitKind};

/// Reads the files and looks up missing values. `what` is the failure summary.
pub fn read(lists: &ListAdditions, what: &str) -> Result<Vec<EnvVar>, CommandError> {
    let files = lists.env_file.iter().map(|file| read_variables(file, what));
    let files = files.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    merge_own(files, &lists.env, what)
}

/// Looks up missing values. `what` is the failure summary.
pub fn resolve(flags: &[EnvVariable], what: &str) -> Result<Vec<EnvVar>, CommandError> {
    merge_own(Vec::new(), flags, what)
}

fn merge_own(
    files: Vec<EnvVariable>,
    flags: &[EnvVariable],
    what: &str,
) -> Result<Vec<EnvVar>, CommandError> {
    merge(files, flags, |name| std::env::var(name).ok())
        .map_err(|why| CommandError::new(ExitKind::Usage, what, why, "give it a value: NAME=VALUE"))
}

fn read_variables(file: &Path, what: &str) -> Result<Vec<EnvVariable>, CommandError> {
    let failed = |exit, why: String| {
        let why = format!("{}: {why}", file.display());
        CommandError::new(exit, what, why, "check the file given as --env-file")
    };
    let text = std::fs::read_to_string(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(ExitKind::NotFound, "there is no such file".to_owned()),
        _ => failed(ExitKind::Failed, error.to_string()),
    })?;
    value::variables(&text).map_err(|why| failed(ExitKind::Usage, why))
}

/// Variables of files first, in their order; flags replace those of the same name. A missing value comes from the
/// environment of this command.
fn merge(
    files: Vec<EnvVariable>,
    flags: &[EnvVariable],
    own: impl Fn(&str) -> Option<String>,
) -> Result<Vec<EnvVar>, String> {
    let mut from_files: Vec<EnvVariable> = Vec::new();
    for variable in files {
        // The last one wins, as in a shell.
        from_files.retain(|earlier| earlier.name != variable.name);
        from_files.push(variable);
    }
    from_files.retain(|variable| !flags.iter().any(|flag| flag.name == variable.name));
    let all = from_files.iter().chain(flags);
    all.map(|EnvVariable { name, value }| {
        let value = value.clone().or_else(|| own(name));
        let value = value.ok_or_else(|| format!("{name} has no value, and is not set in the environment"))?;
        Ok(EnvVar { name: name.clone(), value })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_files_and_bare_names_read_environment() {
        let variable = |text: &&str| value::variable(text).unwrap();
        let env = |files: &[&str], flags: &[&str]| {
            let own = |name: &str| (name == "HERE").then(|| "own".to_owned());
            let files = files.iter().map(variable).collect();
            let flags: Vec<EnvVariable> = flags.iter().map(variable).collect();
            let env = merge(files, &flags, own)?;
            Ok::<_, String>(
                env.into_iter().map(|var| format!("{}={}", var.name, var.value)).collect::<Vec<_>>(),
            )
        };
        assert_eq!(env(&["A=1", "B=1", "A=2"], &["B=3", "HERE"]).unwrap(), ["A=2", "B=3", "HERE=own"]);
        assert_eq!(env(&[], &["AWAY"]).unwrap_err(), "AWAY has no value, and is not set in the environment");
        // Duplicate flags are refused by the validation of the spec.
        assert_eq!(env(&[], &["A=1", "A=2"]).unwrap(), ["A=1", "A=2"]);
    }
}
