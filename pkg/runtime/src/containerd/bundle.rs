//! Removes a bundle that containerd abandoned and that blocks the creation of a process.
//!
//! For each process containerd creates a bundle directory, fills it, and starts a supervisor in it. If it is
//! killed in between, or right after, it neither uses nor removes the bundle, at this start or any later one,
//! and every creation of the same id fails with "mkdir ...: file exists". Seen with 1.6.20.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file that exists only after a container's process was created.
const PROCESS_FILE: &str = "init.pid";

/// A creation in progress gets from its bundle to a supervisor in far less. A younger bundle may be of a
/// creation whose caller was killed; it is not abandoned while containerd still works on it.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// The bundle in an error message, if it is the one of this container.
pub(super) fn blocking_bundle(message: &str, namespace: &str, id: &str) -> Option<PathBuf> {
    let path = message.split_once("failed to start shim: mkdir ")?.1.split_once(": file exists")?.0;
    let path = Path::new(path);
    (path.is_absolute() && path.ends_with(Path::new(namespace).join(id))).then(|| path.to_owned())
}

/// Checks that containerd abandoned the bundle.
///
/// # Errors
/// It may be in use: it is too young, or the container's process was created in it.
pub(super) fn check_abandoned(bundle: &Path) -> io::Result<()> {
    check_age(bundle, ABANDONED_AFTER)
}

fn check_age(bundle: &Path, least: Duration) -> io::Result<()> {
    // An age that is negative, after the clock was set back, counts as zero.
    let age = fs::metadata(bundle)?.modified()?.elapsed().unwrap_or_default();
    if age < least {
        return Err(io::Error::other(format!("{} is only {age:?} old, and may be in use", bundle.display())));
    }
    if bundle.join(PROCESS_FILE).exists() {
        let reason = format!("{} contains {PROCESS_FILE}, so it is not abandoned", bundle.display());
        return Err(io::Error::other(reason));
    }
    Ok(())
}

/// Removes an abandoned bundle without a supervisor, unless something is mounted or written in it.
pub(super) fn remove(bundle: &Path) -> io::Result<()> {
    for entry in fs::read_dir(bundle)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            // The kernel refuses if it is a mount point or not empty.
            true => fs::remove_dir(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir(bundle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_bundle_is_recognised() {
        let message =
            "failed to start shim: mkdir /run/x/io.containerd.runtime.v2.task/ns/a: file exists: unknown";
        let folder = Path::new("/run/x/io.containerd.runtime.v2.task/ns/a");
        assert_eq!(blocking_bundle(message, "ns", "a").as_deref(), Some(folder));
        for (message, namespace, id) in [
            (message, "ns", "b"),
            (message, "other", "a"),
            ("failed to start shim: mkdir relative/ns/a: file exists", "ns", "a"),
            ("mkdir /x/ns/a: file exists", "ns", "a"),
            ("failed to start shim: mkdir /x/ns/a: no space left on device", "ns", "a"),
        ] {
            assert_eq!(blocking_bundle(message, namespace, id), None, "{message}");
        }
    }

    #[test]
    fn used_bundle_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().join("a");
        let make = || {
            fs::create_dir_all(bundle.join("rootfs")).unwrap();
            fs::write(bundle.join("config.json"), "{}").unwrap();
        };
        make();
        fs::write(bundle.join("init.pid"), "1").unwrap();
        assert!(check_age(&bundle, Duration::ZERO).is_err());
        fs::remove_file(bundle.join("init.pid")).unwrap();
        assert!(check_abandoned(&bundle).is_err(), "it was made just now");
        check_age(&bundle, Duration::ZERO).unwrap();
        fs::write(bundle.join("rootfs/file"), "x").unwrap();
        assert!(remove(&bundle).is_err());
        assert!(bundle.join("rootfs/file").exists());
        fs::remove_file(bundle.join("rootfs/file")).unwrap();
        make();
        fs::write(bundle.join("address"), "x").unwrap();
        remove(&bundle).unwrap();
        assert!(!bundle.exists());
    }
}
