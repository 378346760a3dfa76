//! The variables that flags, files and this command's own environment give together.

use std::path::Path;

use warren_types::EnvVar;

use crate::args::lists::Additions;
use crate::args::value::{self, Variable};
use crate::failure::{Exit, Failure};

/// Reads the files and looks up what has no value. `what` is what is not done if that fails.
pub fn read(lists: &Additions, what: &str) -> Result<Vec<EnvVar>, Failure> {
    let files = lists.env_file.iter().map(|file| read_variables(file, what));
    let files = files.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    merged(files, &lists.env, |name| std::env::var(name).ok())
        .map_err(|why| Failure::new(Exit::Usage, what, why, "give it a value: NAME=VALUE"))
}

fn read_variables(file: &Path, what: &str) -> Result<Vec<Variable>, Failure> {
    let failed = |exit, why: String| {
        let why = format!("{}: {why}", file.display());
        Failure::new(exit, what, why, "check the file given as --env-file")
    };
    let text = std::fs::read_to_string(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(Exit::NotFound, "there is no such file".to_owned()),
        _ => failed(Exit::Failed, error.to_string()),
    })?;
    value::variables(&text).map_err(|why| failed(Exit::Usage, why))
}

/// Variables of files first, in their order; one of the flags takes the place of those of its name. Those
/// without a value get this command's own.
fn merged(
    files: Vec<Variable>,
    flags: &[Variable],
    own: impl Fn(&str) -> Option<String>,
) -> Result<Vec<EnvVar>, String> {
    let mut from_files: Vec<Variable> = Vec::new();
    for variable in files {
        // As in a shell that reads the files, the last one counts.
        from_files.retain(|earlier| earlier.name != variable.name);
        from_files.push(variable);
    }
    from_files.retain(|variable| !flags.iter().any(|flag| flag.name == variable.name));
    let all = from_files.iter().chain(flags);
    all.map(|Variable { name, value }| {
        let value = value.clone().or_else(|| own(name));
        let value = value.ok_or_else(|| format!("{name} has no value, and is not set here either"))?;
        Ok(EnvVar { name: name.clone(), value })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_files_and_names_alone_take_the_own_value() {
        let variable = |text: &&str| value::variable(text).unwrap();
        let env = |files: &[&str], flags: &[&str]| {
            let own = |name: &str| (name == "HERE").then(|| "own".to_owned());
            let files = files.iter().map(variable).collect();
            let flags: Vec<Variable> = flags.iter().map(variable).collect();
            let env = merged(files, &flags, own)?;
            Ok::<_, String>(
                env.into_iter().map(|var| format!("{}={}", var.name, var.value)).collect::<Vec<_>>(),
            )
        };
        assert_eq!(env(&["A=1", "B=1", "A=2"], &["B=3", "HERE"]).unwrap(), ["A=2", "B=3", "HERE=own"]);
        assert_eq!(env(&[], &["AWAY"]).unwrap_err(), "AWAY has no value, and is not set here either");
        // What a flag says twice is for the spec's own check to refuse.
        assert_eq!(env(&[], &["A=1", "A=2"]).unwrap(), ["A=1", "A=2"]);
    }
}
