//! The settings of a node, stored at its creation: `node.toml` in the data directory, with a section for
//! each part: `[node]`, `[manager]`, `[worker]`.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use warren_security::files;

use crate::error::error_chain;
use crate::{CommandError, ExitKind};

const NOT_STARTED: &str = "cannot start the node";

/// The sections of the settings file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeFile {
    path: PathBuf,
    table: toml::Table,
}

fn file_path(data_dir: &Path) -> PathBuf {
    data_dir.join("node.toml")
}

fn unreadable(path: &Path, why: &str) -> CommandError {
    let why = format!("cannot read {}: {why}", path.display());
    CommandError::new(ExitKind::Failed, NOT_STARTED, why, "correct the file, or choose another --data-dir")
}

impl NodeFile {
    /// Empty settings for `data_dir`.
    pub fn new(data_dir: &Path) -> Self {
        Self { path: file_path(data_dir), table: toml::Table::new() }
    }

    /// Loads the settings in `data_dir`; `None` without a file.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn load(data_dir: &Path) -> Result<Option<Self>, CommandError> {
        let path = file_path(data_dir);
        match std::fs::read_to_string(&path) {
            Ok(text) => match toml::from_str(&text) {
                Ok(table) => Ok(Some(Self { path, table })),
                Err(why) => Err(unreadable(&path, &why.to_string())),
            },
            // The caller that opens the directory reports that it is not one.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let why = format!("{} cannot be read by this user", path.display());
                Err(CommandError::new(
                    ExitKind::Denied,
                    NOT_STARTED,
                    why,
                    "run it as root, or choose another --data-dir",
                ))
            }
            Err(error) => Err(unreadable(&path, &error.to_string())),
        }
    }

    /// Section `name`; `None` if it does not exist.
    ///
    /// # Errors
    /// The section has fields or values that this version cannot read.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, CommandError> {
        let Some(section) = self.table.get(name) else { return Ok(None) };
        let read = section.clone().try_into();
        read.map(Some).map_err(|why| unreadable(&self.path, &format!("[{name}]: {why}")))
    }

    /// Replaces section `name`.
    ///
    /// # Panics
    /// `section` is not plain data with named fields.
    #[must_use]
    pub fn with_section<T: Serialize>(mut self, name: &str, section: &T) -> Self {
        let section = toml::Value::try_from(section).expect("settings are plain data with named fields");
        self.table.insert(name.to_owned(), section);
        self
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> Result<(), CommandError> {
        let failed = |why: String| {
            let why = format!("cannot write {}: {why}", self.path.display());
            let hint = "check the disk, then try again";
            CommandError::new(ExitKind::Failed, "cannot save the settings of the node", why, hint)
        };
        let text = toml::to_string(&self.table).map_err(|why| failed(why.to_string()))?;
        // Unchanged settings are not written: a repeated command then needs no disk space.
        if files::read_private(&self.path).is_ok_and(|kept| *kept == text) {
            return Ok(());
        }
        files::write_private(&self.path, text.as_bytes()).map_err(|error| failed(error_chain(&error)))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct TestSection {
        log_engine: Option<String>,
        #[serde(default)]
        ports: Vec<u16>,
    }

    #[test]
    fn saved_sections_load_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(NodeFile::load(dir.path()).unwrap(), None);
        for ports in [vec![], vec![1, 2], vec![1, 2]] {
            let output = TestSection { log_engine: Some("redb".into()), ports };
            NodeFile::new(dir.path()).with_section("manager", &output).save().unwrap();
            let read = NodeFile::load(dir.path()).unwrap().unwrap();
            assert_eq!(read.section("manager").unwrap(), Some(output));
            assert_eq!(read.section::<TestSection>("worker").unwrap(), None);
        }
    }

    #[test]
    fn damaged_file_error_names_path() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(file_path(dir.path()), "[manager\n").unwrap();
        let failure = NodeFile::load(dir.path()).unwrap_err().to_string();
        assert!(failure.contains("node.toml") && failure.contains("line 1"), "{failure}");
        std::fs::write(file_path(dir.path()), "[manager]\nlater = 1\n").unwrap();
        let read = NodeFile::load(dir.path()).unwrap().unwrap();
        let failure = read.section::<TestSection>("manager").unwrap_err().to_string();
        assert!(failure.contains("[manager]") && failure.contains("later"), "{failure}");
    }
}
