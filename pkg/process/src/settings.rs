//! What a node was told when it was made, kept beside what was made: `node.toml` in the data dir, with a section
//! for each of its parts: `[node]`, `[manager]`, `[worker]`.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use warren_security::files;

use crate::failure::chain;
use crate::{Exit, Failure};

const WHAT: &str = "the node was not started";

/// The sections that were kept, or that shall be.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sections {
    path: PathBuf,
    table: toml::Table,
}

fn file(data_dir: &Path) -> PathBuf {
    data_dir.join("node.toml")
}

fn unreadable(path: &Path, why: &str) -> Failure {
    let why = format!("cannot read {}: {why}", path.display());
    Failure::new(Exit::Failed, WHAT, why, "correct the file, or choose another --data-dir")
}

impl Sections {
    /// Nothing kept yet in `data_dir`.
    pub fn new(data_dir: &Path) -> Self {
        Self { path: file(data_dir), table: toml::Table::new() }
    }

    /// What was kept in `data_dir`; `None` where nothing was.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn load(data_dir: &Path) -> Result<Option<Self>, Failure> {
        let path = file(data_dir);
        match std::fs::read_to_string(&path) {
            Ok(text) => match toml::from_str(&text) {
                Ok(table) => Ok(Some(Self { path, table })),
                Err(why) => Err(unreadable(&path, &why.to_string())),
            },
            // A directory that is none is told by whoever opens it.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let why = format!("{} cannot be read by this user", path.display());
                Err(Failure::new(Exit::Denied, WHAT, why, "run it as root, or choose another --data-dir"))
            }
            Err(error) => Err(unreadable(&path, &error.to_string())),
        }
    }

    /// The section called `name`; `None` where there is none.
    ///
    /// # Errors
    /// It holds what this version does not understand.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Failure> {
        let Some(section) = self.table.get(name) else { return Ok(None) };
        let read = section.clone().try_into();
        read.map(Some).map_err(|why| unreadable(&self.path, &format!("[{name}]: {why}")))
    }

    /// Puts `section` in the place of what was called `name`.
    ///
    /// # Panics
    /// The section is not plain data with named fields.
    #[must_use]
    pub fn with<T: Serialize>(mut self, name: &str, section: &T) -> Self {
        let section = toml::Value::try_from(section).expect("settings are plain data with named fields");
        self.table.insert(name.to_owned(), section);
        self
    }

    /// Keeps the sections in place of what was kept before.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember(&self) -> Result<(), Failure> {
        let failed = |why: String| {
            let why = format!("cannot write {}: {why}", self.path.display());
            let hint = "check the disk, then try again";
            Failure::new(Exit::Failed, "the node's settings were not kept", why, hint)
        };
        let text = toml::to_string(&self.table).map_err(|why| failed(why.to_string()))?;
        // A command that is repeated says nothing new, and needs no room on the disk.
        if files::read_private(&self.path).is_ok_and(|kept| *kept == text) {
            return Ok(());
        }
        files::write_private(&self.path, text.as_bytes()).map_err(|error| failed(chain(&error)))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct Said {
        log_engine: Option<String>,
        #[serde(default)]
        ports: Vec<u16>,
    }

    #[test]
    fn what_is_remembered_is_what_was_said_also_twice() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Sections::load(dir.path()).unwrap(), None);
        for ports in [vec![], vec![1, 2], vec![1, 2]] {
            let said = Said { log_engine: Some("redb".into()), ports };
            Sections::new(dir.path()).with("manager", &said).remember().unwrap();
            let read = Sections::load(dir.path()).unwrap().unwrap();
            assert_eq!(read.section("manager").unwrap(), Some(said));
            assert_eq!(read.section::<Said>("worker").unwrap(), None);
        }
    }

    #[test]
    fn a_damaged_file_is_told_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(file(dir.path()), "[manager\n").unwrap();
        let failure = Sections::load(dir.path()).unwrap_err().to_string();
        assert!(failure.contains("node.toml") && failure.contains("line 1"), "{failure}");
        std::fs::write(file(dir.path()), "[manager]\nlater = 1\n").unwrap();
        let read = Sections::load(dir.path()).unwrap().unwrap();
        let failure = read.section::<Said>("manager").unwrap_err().to_string();
        assert!(failure.contains("[manager]") && failure.contains("later"), "{failure}");
    }
}
