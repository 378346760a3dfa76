//! The data of secrets and configs, which is sent with the steps that need it.

use std::collections::BTreeMap;
use std::path::Path;

use warren_compose::stack::{SecretObjectSource, StackSecretObject};
use warren_compose::{Project, Variables};
use warren_types::SecretObjectName;
use warren_types::secret_object::MAX_SECRET_OBJECT_SIZE;
use zeroize::Zeroizing;

use crate::failure::{CommandError, ExitKind};
use crate::input;

/// By kind and name.
pub type SecretObjectData = BTreeMap<(&'static str, SecretObjectName), Zeroizing<Vec<u8>>>;

/// Reads what the files of a project name.
///
/// # Errors
/// A file or variable is missing, or its data has a size that no secret or config may have.
pub fn read(
    objects: &[StackSecretObject],
    project: &Project,
    what: &str,
) -> Result<SecretObjectData, CommandError> {
    let mut data = SecretObjectData::new();
    for object in objects {
        let bytes = match &object.source {
            SecretObjectSource::File(path) => {
                let read = input::read_secret_object(object.kind, Path::new(path), what);
                read.map_err(|error| CommandError {
                    why: object.defined.problem(&error.why).to_string(),
                    ..error
                })?
            }
            SecretObjectSource::Content(text) => Zeroizing::new(text.clone().into_bytes()),
            SecretObjectSource::Variable(name) => variable(&project.variables, name, object, what)?,
            SecretObjectSource::Document | SecretObjectSource::Existing => continue,
        };
        check_size(object, &bytes, what)?;
        data.insert((object.kind.as_str(), object.name.clone()), bytes);
    }
    Ok(data)
}

/// Refuses data that no secret or config may have.
pub fn check_size(object: &StackSecretObject, bytes: &[u8], what: &str) -> Result<(), CommandError> {
    if !bytes.is_empty() && bytes.len() <= MAX_SECRET_OBJECT_SIZE {
        return Ok(());
    }
    let why = object.defined.problem(format!("has {} bytes", bytes.len())).to_string();
    let hint = format!("give 1 to {MAX_SECRET_OBJECT_SIZE} bytes");
    Err(CommandError::new(ExitKind::Usage, what, why, hint))
}

fn variable(
    variables: &Variables,
    name: &str,
    object: &StackSecretObject,
    what: &str,
) -> Result<Zeroizing<Vec<u8>>, CommandError> {
    let value = variables.get(name).ok_or_else(|| {
        let why = object.defined.problem(format!("the variable {name} is not set")).to_string();
        CommandError::new(ExitKind::Usage, what, why, "set it in the environment or in the env file")
    })?;
    Ok(Zeroizing::new(value.clone().into_bytes()))
}
