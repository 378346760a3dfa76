//! Finds programs on this machine.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Usual directories of the needed programs, for services with a shorter `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// `PATH` of this process, followed by the usual directories.
pub(crate) fn search_path() -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(DEFAULT_PATH);
    path
}

/// The program with this name, or at this path.
pub(crate) fn find(name: &Path, path: &OsString) -> Option<PathBuf> {
    match name.components().count() {
        1 => env::split_paths(path).map(|folder| folder.join(name)).find(|file| is_program(file)),
        _ => Some(name.to_owned()).filter(|file| is_program(file)),
    }
}

/// Whether the file is executable.
pub(crate) fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        let path = search_path();
        assert!(find(Path::new("sh"), &path).is_some());
        assert!(find(Path::new("/bin/sh"), &path).is_some());
        for missing in ["no-such-program-here", "/etc/passwd", "/bin"] {
            assert!(find(Path::new(missing), &path).is_none(), "{missing}");
        }
    }
}
