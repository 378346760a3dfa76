//! A folder that containerd leaves when it dies right after making it, and then stumbles over for ever.
//!
//! For each process containerd makes a folder, fills it, and starts a supervisor in it. Killed in between,
//! it neither finds the folder usable nor removes it, at this start or any later one, and every creation of
//! the same id fails with "mkdir ...: file exists". Seen with 1.6.20.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Files that exist only once a supervisor was started.
const OF_A_SUPERVISOR: [&str; 2] = ["address", "init.pid"];

/// A creation that goes on gets from its folder to a supervisor in far less. A younger folder may be that of a creation
/// whose caller was killed, and it is not abandoned as long as containerd is at work in it.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// The folder that an error message complains about, if it is the one of this container.
pub(super) fn in_the_way(message: &str, namespace: &str, id: &str) -> Option<PathBuf> {
    let path = message.split_once("failed to start shim: mkdir ")?.1.split_once(": file exists")?.0;
    let path = Path::new(path);
    (path.is_absolute() && path.ends_with(Path::new(namespace).join(id))).then(|| path.to_owned())
}

/// Removes such a folder, unless it is young, or anything was ever started in it or mounted on it.
pub(super) fn remove(bundle: &Path) -> io::Result<()> {
    remove_older(bundle, ABANDONED_AFTER)
}

fn remove_older(bundle: &Path, least: Duration) -> io::Result<()> {
    // An age that cannot be told, after the clock was set back, is none.
    let age = fs::metadata(bundle)?.modified()?.elapsed().unwrap_or_default();
    if age < least {
        return Err(io::Error::other(format!("{} is only {age:?} old, and may be in use", bundle.display())));
    }
    if let Some(file) = OF_A_SUPERVISOR.iter().find(|file| bundle.join(file).exists()) {
        return Err(io::Error::other(format!("{} has {file}, so it is not abandoned", bundle.display())));
    }
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
        fs::write(bundle.join("address"), "x").unwrap();
        assert!(remove_older(&bundle, Duration::ZERO).is_err());
        fs::remove_file(bundle.join("address")).unwrap();
        fs::write(bundle.join("rootfs/file"), "x").unwrap();
        assert!(remove_older(&bundle, Duration::ZERO).is_err());
        assert!(bundle.join("rootfs/file").exists());
        fs::remove_file(bundle.join("rootfs/file")).unwrap();
        make();
        assert!(remove(&bundle).is_err(), "it was made just now");
        remove_older(&bundle, Duration::ZERO).unwrap();
        assert!(!bundle.exists());
    }
}
