//! Making names, and making them durable. Syncing a file keeps its content; whether its directory still has its
//! name after a power cut is another matter.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// Makes the names in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::io("sync", dir))
}

/// Makes the name of `path` in its directory durable.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if parent != Path::new("") => sync_dir(parent),
        Some(_) => sync_dir(Path::new(".")),
        None => Ok(()),
    }
}

/// A path in the same directory: `path` with more at the end of its name.
pub(crate) fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}
