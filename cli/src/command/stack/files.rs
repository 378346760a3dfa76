//! Reads the Compose files of a stack.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use warren_compose::stack::{StackObjects, stack};
use warren_compose::yaml::MAX_FILE_SIZE;
use warren_compose::{ComposeProblem, Project, ProjectSource, Variables, load};
use warren_daemon::printable;
use warren_types::DnsLabel;

use crate::args::ComposeFileArgs;
use crate::failure::{CommandError, ExitKind};

/// The files that are read if none is given, with the one that is merged if it exists.
const DEFAULT_FILES: [(&str, &str); 4] = [
    ("compose.yaml", "compose.override.yaml"),
    ("compose.yml", "compose.override.yml"),
    ("docker-compose.yml", "docker-compose.override.yml"),
    ("docker-compose.yaml", "docker-compose.override.yaml"),
];
/// Profiles, separated by commas.
const PROFILES_VARIABLE: &str = "COMPOSE_PROFILES";
/// The most problems that are listed.
const MAX_LISTED: usize = 50;

/// Files that were read, and what they describe.
pub struct LoadedStack {
    pub project: Project,
    /// The given name, that in the files, or that of their directory.
    pub name: DnsLabel,
    pub objects: StackObjects,
}

/// The project of the files, and the objects of its stack. Warnings are printed.
pub fn load_stack(
    args: &ComposeFileArgs,
    name: Option<&DnsLabel>,
    what: &str,
) -> Result<LoadedStack, CommandError> {
    let failed = |why: String, hint: &str| CommandError::new(ExitKind::Usage, what, why, hint);
    let working_directory = std::env::current_dir().map_err(|why| {
        failed(format!("the working directory is not known: {why}"), "change to another one")
    })?;
    let files = match args.compose_files.as_slice() {
        [] => default_files(&working_directory).ok_or_else(|| {
            failed("there is no compose.yaml here".to_owned(), "give the file with -c FILE")
        })?,
        given => given.to_vec(),
    };
    let variables: Variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let by_variable = variables.get(PROFILES_VARIABLE).map(String::as_str).unwrap_or_default();
    let by_variable =
        by_variable.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    let source = ProjectSource {
        profiles: args.profile.iter().cloned().chain(by_variable).collect(),
        files,
        env_files: args.env_file.clone(),
        variables,
        working_directory: working_directory.clone(),
    };
    let refused = |problems: Vec<ComposeProblem>| {
        let listed = problems.iter().take(MAX_LISTED).map(ToString::to_string);
        let mut lines: Vec<String> = listed.collect();
        if problems.len() > MAX_LISTED {
            lines.push(format!("and {} more", problems.len() - MAX_LISTED));
        }
        failed(lines.join("\n"), "correct what is listed; docs/compose.md lists every key")
    };
    let project = load(&source, &read_file).map_err(refused)?;
    let name = match name {
        Some(name) => name.clone(),
        None => stack_name(&project, &source).map_err(|why| failed(why, "give the name of the stack"))?,
    };
    let objects = stack(&project, &name).map_err(refused)?;
    for warning in project.warnings.iter().chain(&objects.warnings) {
        eprintln!("warning: {}", printable(&warning.to_string()));
    }
    Ok(LoadedStack { project, name, objects })
}

fn default_files(directory: &Path) -> Option<Vec<PathBuf>> {
    let (file, over) = DEFAULT_FILES.into_iter().find(|(file, _)| directory.join(file).is_file())?;
    let over = Some(over).filter(|over| directory.join(over).is_file());
    Some(std::iter::once(file).chain(over).map(PathBuf::from).collect())
}

/// The name in the files, or that of the directory of the first one in the letters that names have.
fn stack_name(project: &Project, source: &ProjectSource) -> Result<DnsLabel, String> {
    if let Some(name) = project.name() {
        return name.parse().map_err(|why| format!("name: {why}"));
    }
    let first = source.files.first().map(|file| source.working_directory.join(file));
    let directory = first.as_deref().and_then(Path::parent).and_then(Path::file_name);
    let name = directory.map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let is_plain = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let name: String = name.chars().filter(is_plain).collect();
    name.trim_matches(['-', '_']).parse().map_err(|why| format!("the directory of the files: {why}"))
}

/// The text of a file; `None` if there is none.
fn read_file(path: &Path) -> Result<Option<String>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = String::new();
    let limit = u64::try_from(MAX_FILE_SIZE).unwrap_or(u64::MAX).saturating_add(1);
    match file.take(limit).read_to_string(&mut text) {
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::InvalidData => Err("it is not UTF-8 text".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
