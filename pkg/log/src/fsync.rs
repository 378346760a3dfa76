//! Durable file names. Syncing a file does not make its directory entry durable.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// Syncs the directory entries in `dir`.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::io("sync", dir))
}

/// Syncs the directory entry of `path`.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if parent != Path::new("") => sync_dir(parent),
        Some(_) => sync_dir(Path::new(".")),
        None => Ok(()),
    }
}

/// `path` with a suffix appended to its file name.
pub(crate) fn with_suffix(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}
