//! What runc and the shims keep outside of containerd's own directories, shared by all containerds of a
//! machine: a state directory per container, by namespace and container id, and a socket per shim.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The default state directory of runc.
const RUNC: &str = "/run/containerd/runc";
/// The location of a shim's bundle under containerd's state directory: below it come namespace and container
/// id.
const BUNDLES: &str = "io.containerd.runtime.v2.task";

/// The state directories of containers whose root file system is under `directory`. A leftover keeps the next
/// container of that name from starting, in any containerd of the machine.
#[must_use]
pub fn runc_states(directory: &Path) -> Vec<PathBuf> {
    let mark = format!("{}/", directory.display());
    let states =
        children(Path::new(RUNC)).iter().flat_map(|namespace| children(namespace)).collect::<Vec<_>>();
    let is_ours = |state: &PathBuf| {
        std::fs::read_to_string(state.join("state.json")).is_ok_and(|text| text.contains(&mark))
    };
    states.into_iter().filter(is_ours).collect()
}

/// The sockets of the shims whose bundles are under `directory`.
pub(super) fn sockets(directory: &Path) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    let mut open = vec![(directory.to_owned(), 0)];
    while let Some((path, depth)) = open.pop() {
        if path.ends_with(BUNDLES) {
            let bundles =
                children(&path).iter().flat_map(|namespace| children(namespace)).collect::<Vec<_>>();
            for bundle in bundles {
                let address = std::fs::read_to_string(bundle.join("address")).unwrap_or_default();
                sockets.extend(address.strip_prefix("unix://").map(PathBuf::from));
            }
        } else if depth < 4 {
            // containerd's state directory is at most a few levels down; images are not searched.
            let is_directory = |path: &PathBuf| path.symlink_metadata().is_ok_and(|data| data.is_dir());
            open.extend(children(&path).into_iter().filter(is_directory).map(|child| (child, depth + 1)));
        }
    }
    sockets
}

/// Removes a file or a directory; harmless when it does not exist.
pub(super) fn remove(path: &Path) -> Result<(), String> {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}
