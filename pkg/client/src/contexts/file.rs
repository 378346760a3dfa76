//! The file `contexts.toml`: readable by its owner only, replaced atomically.

use std::error::Error as _;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warren_security::{FileError, files};

use super::{ClientContext, ClientIdentity, ClientTarget, Contexts};
use crate::error::Error;

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextsDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: Vec<ContextEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextEntry {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<String>,
    /// As it was written before there could be several.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    incarnation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<super::PrivateKeyPem>,
}

fn is_zero(incarnation: &u64) -> bool {
    *incarnation == 0
}

pub(super) fn load(file: &Path) -> Result<Contexts, Error> {
    let text = match files::read_private(file) {
        Ok(text) => text,
        Err(FileError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Contexts { file: file.to_owned(), current: None, contexts: Vec::new() });
        }
        Err(error) => return Err(file_error("read", file, with_cause(&error))),
    };
    parse(file, &text).map_err(|why| file_error("understand", file, why))
}

/// Changes the file under a lock. The lock is on the directory, since each change replaces the file.
pub(super) fn update(file: &Path, change: impl FnOnce(&mut Contexts)) -> Result<(), Error> {
    let opened = open_directory(file)?;
    opened.lock().map_err(|error| file_error("lock", file, error.to_string()))?;
    write(file, change)
}

/// As [`update`], but skips the change if another process holds the lock. Returns whether the file changed.
pub(super) fn try_update(file: &Path, change: impl FnOnce(&mut Contexts)) -> Result<bool, Error> {
    let opened = open_directory(file)?;
    match opened.try_lock() {
        Ok(()) => write(file, change).map(|()| true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(file_error("lock", file, error.to_string())),
    }
}

fn open_directory(file: &Path) -> Result<File, Error> {
    let directory = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    files::ensure_private_dir(directory).map_err(|error| file_error("write", file, with_cause(&error)))?;
    File::open(directory).map_err(|error| file_error("lock", file, error.to_string()))
}

fn write(file: &Path, change: impl FnOnce(&mut Contexts)) -> Result<(), Error> {
    let mut contexts = load(file)?;
    change(&mut contexts);
    let text = toml::to_string(&document(&contexts))
        .map_err(|error| file_error("write", file, error.to_string()))?;
    files::write_private(file, text.as_bytes()).map_err(|error| file_error("write", file, with_cause(&error)))
}

fn file_error(operation: &'static str, file: &Path, why: String) -> Error {
    Error::ContextsFile { operation, file: file.to_owned(), why }
}

fn with_cause(error: &FileError) -> String {
    match error.source() {
        Some(cause) => format!("{error} ({cause})"),
        None => error.to_string(),
    }
}

fn parse(file: &Path, text: &str) -> Result<Contexts, String> {
    let document: ContextsDocument = toml::from_str(text).map_err(|error| {
        // Without the full error text, which quotes the line and may contain a key.
        let line = error.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        format!("{place}{}", error.message())
    })?;
    let mut contexts: Vec<ClientContext> = Vec::new();
    for entry in document.contexts {
        let context = parse_entry(entry)?;
        if contexts.iter().any(|known| known.name == context.name) {
            return Err(format!("it has two contexts with the name {:?}", context.name));
        }
        contexts.push(context);
    }
    Ok(Contexts { file: file.to_owned(), current: document.current, contexts })
}

fn parse_entry(entry: ContextEntry) -> Result<ClientContext, String> {
    let (name, incarnation) = (entry.name, entry.incarnation);
    let given: Vec<String> = entry.addresses.into_iter().chain(entry.address).collect();
    let target = match (entry.socket, given.is_empty(), entry.ca, entry.certificate, entry.key) {
        (Some(socket), true, None, None, None) => ClientTarget::Unix { socket },
        (None, false, Some(ca), Some(certificate), Some(key)) => {
            let addresses = given.iter().map(|address| address.parse()).collect::<Result<Vec<_>, _>>();
            let addresses = addresses.map_err(|error| format!("context {name:?}: {error}"))?;
            ClientTarget::Tcp { addresses, identity: ClientIdentity { ca, certificate, key } }
        }
        _ => {
            return Err(format!(
                "context {name:?} needs either socket, or addresses, ca, certificate and key"
            ));
        }
    };
    Ok(ClientContext { name, target, incarnation })
}

fn document(contexts: &Contexts) -> ContextsDocument {
    let entry = |context: &ClientContext| {
        let empty = ContextEntry {
            name: context.name.clone(),
            socket: None,
            addresses: Vec::new(),
            address: None,
            incarnation: context.incarnation,
            ca: None,
            certificate: None,
            key: None,
        };
        match context.target.clone() {
            ClientTarget::Unix { socket } => ContextEntry { socket: Some(socket), ..empty },
            ClientTarget::Tcp { addresses, identity: ClientIdentity { ca, certificate, key } } => {
                ContextEntry {
                    addresses: addresses.iter().map(ToString::to_string).collect(),
                    ca: Some(ca),
                    certificate: Some(certificate),
                    key: Some(key),
                    ..empty
                }
            }
        }
    };
    ContextsDocument {
        current: contexts.current.clone(),
        contexts: contexts.contexts.iter().map(entry).collect(),
    }
}
