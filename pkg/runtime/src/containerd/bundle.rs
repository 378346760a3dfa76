//! A folder that containerd leaves when it dies right after making it, and then stumbles over for ever.
//!
//! For each process containerd makes a folder, fills it, and starts a supervisor in it. Killed in between, or
//! right after, it neither finds the folder usable nor removes it, at this start or any later one, and every
//! creation of the same id fails with "mkdir ...: file exists". Seen with 1.6.20.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file that exists only once a container's process was made.
const OF_A_PROCESS: &str = "init.pid";

/// A creation that goes on gets from its folder to a supervisor in far less. A younger folder may be that of a creation
/// whose caller was killed, and it is not abandoned as long as containerd is at work in it.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// The folder that an error message complains about, if it is the one of this container.
pub(super) fn in_the_way(message: &str, namespace: &str, id: &str) -> Option<PathBuf> {
    let path = message.split_once("failed to start shim: mkdir ")?.1.split_once(": file exists")?.0;
    let path = Path::new(path);
    (path.is_absolute() && path.ends_with(Path::new(namespace).join(id))).then(|| path.to_owned())
}

/// Whether containerd has given such a folder up.
///
/// # Errors
/// Why it may be in use: it is young, or the container's process was made in it.
pub(super) fn check_abandoned(bundle: &Path) -> io::Result<()> {
    check_older(bundle, ABANDONED_AFTER)
}

fn check_older(bundle: &Path, least: Duration) -> io::Result<()> {
    // An age that cannot be told, after the clock was set back, is none.
    let age = fs::metadata(bundle)?.modified()?.elapsed().unwrap_or_default();
    if age < least {
        return Err(io::Error::other(format!("{} is only {age:?} old, and may be in use", bundle.display())));
    }
    if bundle.join(OF_A_PROCESS).exists() {
        let reason = format!("{} has {OF_A_PROCESS}, so it is not abandoned", bundle.display());
        return Err(io::Error::other(reason));
    }
    Ok(())
}

/// Removes an abandoned folder in which no supervisor runs, unless anything is mounted or written in it.
pub(super) fn remove(bundle: &Path) -> io::Result<()> {
    for entry in fs::read_dir(bundle)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            // The kernel refuses if it is mounted on or has anything in it.
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
    fn only_the_containers_own_folder_is_recognised() {
        let message =
            "failed to start shim: mkdir /run/x/io.containerd.runtime.v2.task/ns/a: file exists: unknown";
        let folder = Path::new("/run/x/io.containerd.runtime.v2.task/ns/a");
        assert_eq!(in_the_way(message, "ns", "a").as_deref(), Some(folder));
        for (message, namespace, id) in [
            (message, "ns", "b"),
            (message, "other", "a"),
            ("failed to start shim: mkdir relative/ns/a: file exists", "ns", "a"),
            ("mkdir /x/ns/a: file exists", "ns", "a"),
            ("failed to start shim: mkdir /x/ns/a: no space left on device", "ns", "a"),
        ] {
            assert_eq!(in_the_way(message, namespace, id), None, "{message}");
        }
    }

    #[test]
    fn what_was_ever_used_stays() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().join("a");
        let make = || {
            fs::create_dir_all(bundle.join("rootfs")).unwrap();
            fs::write(bundle.join("config.json"), "{}").unwrap();
        };
        make();
        fs::write(bundle.join("init.pid"), "1").unwrap();
        assert!(check_older(&bundle, Duration::ZERO).is_err());
        fs::remove_file(bundle.join("init.pid")).unwrap();
        assert!(check_abandoned(&bundle).is_err(), "it was made just now");
        check_older(&bundle, Duration::ZERO).unwrap();
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
