//! Reads documents from files, directories and standard input.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use warren_compose::ComposeProblem;
use warren_compose::yaml::MAX_FILE_SIZE;
use warren_documents::{DataSource, DocumentKind, Documents, SourceText};
use warren_types::AdmissionPolicy;
use zeroize::Zeroizing;

use crate::command::stack::data::{SecretObjectData, check_size};
use crate::failure::{CommandError, ExitKind};
use crate::input;

/// What the name of a file in a directory ends with.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];
/// The most problems that are listed.
const MAX_LISTED: usize = 50;
const STANDARD_INPUT: &str = "-";

/// The documents of all files; `what` is the failure summary.
pub fn read(paths: &[PathBuf], what: &str) -> Result<Documents, CommandError> {
    let mut files: Vec<(String, Zeroizing<String>)> = Vec::new();
    for path in paths {
        let failed = |error: io::Error| read_failure(what, path, error);
        if path.as_os_str() != STANDARD_INPUT && path.is_dir() {
            let inner = files_of(path).map_err(failed)?;
            if inner.is_empty() {
                let why = format!("{}: has no file *.yaml, *.yml or *.json", path.display());
                return Err(CommandError::new(
                    ExitKind::Usage,
                    what,
                    why,
                    "give a file, or another directory",
                ));
            }
            for file in inner {
                let text = read_text(&file).map_err(|error| read_failure(what, &file, error))?;
                files.push((file.display().to_string(), text));
            }
        } else {
            files.push((path.display().to_string(), read_text(path).map_err(failed)?));
        }
    }
    let texts: Vec<SourceText<'_>> = files.iter().map(|(name, text)| SourceText { name, text }).collect();
    let documents = Documents::read(&texts).map_err(|problems| refused(what, &problems))?;
    if documents.names.is_empty() {
        let hint = "give documents like those that `warren service inspect NAME --as-document` prints";
        return Err(CommandError::new(ExitKind::Usage, what, "the files have no documents", hint));
    }
    Ok(documents)
}

/// The admission policy in a file, or in standard input; `what` is the failure summary.
pub fn read_admission_policy(path: &Path, what: &str) -> Result<AdmissionPolicy, CommandError> {
    let text = read_text(path).map_err(|error| read_failure(what, path, error))?;
    let source = SourceText { name: &path.display().to_string(), text: &text };
    warren_documents::read_admission_policy(source).map_err(|problems| refused(what, &problems))
}

/// Everything that is wrong with documents, in the order of files and lines.
pub fn refused(what: &str, problems: &[ComposeProblem]) -> CommandError {
    let mut lines: Vec<String> = problems.iter().take(MAX_LISTED).map(ToString::to_string).collect();
    if problems.len() > MAX_LISTED {
        lines.push(format!("and {} more", problems.len() - MAX_LISTED));
    }
    let hint = "correct what is listed; `warren schema` prints every field";
    CommandError::new(ExitKind::Usage, what, lines.join("\n"), hint)
}

/// The files of a directory that may have documents, sorted by name.
fn files_of(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read_text(path: &Path) -> io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    // One byte more than is accepted, so that a larger file is refused.
    let limit = u64::try_from(MAX_FILE_SIZE).unwrap_or(u64::MAX).saturating_add(1);
    match path.as_os_str() == STANDARD_INPUT {
        true => io::stdin().lock().take(limit).read_to_string(&mut text)?,
        false => File::open(path)?.take(limit).read_to_string(&mut text)?,
    };
    Ok(text)
}

fn read_failure(what: &str, path: &Path, error: io::Error) -> CommandError {
    let (exit, why, hint) = match error.kind() {
        ErrorKind::NotFound => (ExitKind::NotFound, "there is no such file".to_owned(), "check the path"),
        ErrorKind::InvalidData => (ExitKind::Usage, "is not UTF-8 text".to_owned(), "save it as UTF-8"),
        _ => (ExitKind::Failed, error.to_string(), "check the path and its permissions"),
    };
    CommandError::new(exit, what, format!("{}: {why}", path.display()), hint)
}

/// The data of secrets and configs, also from the files that documents name. Taken out of the documents.
pub fn read_data(documents: &mut Documents, what: &str) -> Result<SecretObjectData, CommandError> {
    let mut data = SecretObjectData::new();
    for object in &documents.objects.secret_objects {
        let key = (DocumentKind::from(object.kind), object.name.clone());
        let bytes = match documents.data.remove(&key) {
            None => continue,
            Some(DataSource::Bytes(bytes)) => Zeroizing::new(bytes),
            Some(DataSource::File(path)) => {
                let directory = Path::new(&*object.defined.at.file).parent();
                let directory = directory.filter(|directory| !directory.as_os_str().is_empty());
                // A file called `-` is not standard input, from which documents may come.
                let path = directory.unwrap_or(Path::new(".")).join(path);
                let read = input::read_secret_object(object.kind, &path, what);
                read.map_err(|error| CommandError {
                    why: object.defined.problem(&error.why).to_string(),
                    ..error
                })?
            }
        };
        check_size(object, &bytes, what)?;
        data.insert((object.kind.as_str(), object.name.clone()), bytes);
    }
    Ok(data)
}
