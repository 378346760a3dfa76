//! Kernel settings below `/proc/sys`, of the network namespace that the calling thread is in.

use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::wanted::Sysctl;

/// Makes the setting so. Returns whether it had to be changed; a setting that is right already is not
/// written, which also works where `/proc/sys` is read-only.
pub(super) fn ensure(setting: &Sysctl) -> Result<bool, Error> {
    match std::fs::read_to_string(file(setting)) {
        Ok(found) if found.trim() == setting.value => return Ok(false),
        // A kernel without IPv6 has nothing to turn off.
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

/// Whether the setting is so already.
pub(super) fn holds(setting: &Sysctl) -> bool {
    match std::fs::read_to_string(file(setting)) {
        Ok(found) => found.trim() == setting.value,
        Err(error) => error.kind() == io::ErrorKind::NotFound && setting.path.starts_with("net/ipv6/"),
    }
}
