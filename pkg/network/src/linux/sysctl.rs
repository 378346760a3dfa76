//! Kernel settings below `/proc/sys`, in the network namespace of the calling thread.

use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::desired::Sysctl;

/// Applies the setting. Returns whether it was changed; a correct setting is not written, which also works
/// where `/proc/sys` is read-only.
pub(super) fn ensure(setting: &Sysctl) -> Result<bool, Error> {
    match std::fs::read_to_string(file(setting)) {
        Ok(found) if found.trim() == setting.value => return Ok(false),
        // A kernel without IPv6 has nothing to disable.
        Err(error) if error.kind() == io::ErrorKind::NotFound && setting.path.starts_with("net/ipv6/") => {
            return Ok(false);
        }
        _ => {}
    }
    std::fs::write(file(setting), setting.value).map_err(|source| failed(setting, source))?;
    Ok(true)
}

/// Whether [`ensure`] would succeed, without changing anything.
pub(super) fn check(setting: &Sysctl) -> Result<(), Error> {
    match std::fs::read_to_string(file(setting)) {
        Ok(found) if found.trim() == setting.value => Ok(()),
        _ => std::fs::OpenOptions::new()
            .write(true)
            .open(file(setting))
            .map(drop)
            .map_err(|source| failed(setting, source)),
    }
}

fn file(setting: &Sysctl) -> PathBuf {
    Path::new("/proc/sys").join(&setting.path)
}

fn failed(setting: &Sysctl, source: io::Error) -> Error {
    Error::Sysctl { name: setting.path.replace('/', "."), value: setting.value.to_owned(), source }
}

/// Whether the setting has the desired value.
pub(super) fn is_set(setting: &Sysctl) -> bool {
    match std::fs::read_to_string(file(setting)) {
        Ok(found) => found.trim() == setting.value,
        Err(error) => error.kind() == io::ErrorKind::NotFound && setting.path.starts_with("net/ipv6/"),
    }
}
