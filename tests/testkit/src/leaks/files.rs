//! All files in the node's directory: logs, sockets, namespace files, bundles.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::{Inventory, LeakScope};

/// Directories whose content belongs to images and to containerd's stores, which are listed by name
/// elsewhere, and would otherwise be walked file by file.
const SKIPPED_DIRS: [&str; 4] = ["fs", "rootfs", "blobs", "ingest"];

/// containerd keeps one directory per used namespace here; its content belongs to containers.
const BUNDLES: &str = "io.containerd.runtime.v2.task";

/// Snapshots of the manager's state depend on the length of its log, not on tasks.
const MANAGER_SNAPSHOT: &str = "snapshot-";

pub(super) fn list(site: &LeakScope<'_>, inventory: &mut Inventory) {
    let mut files = Vec::new();
    walk(site.directory, site.directory, &mut files);
    inventory.add("log files", []);
    inventory.add("files", []);
    for (path, kind) in files {
        let words = format!("{} {path}", describe(kind));
        let is_log = kind.is_file() && path.contains(".log");
        inventory.add(if is_log { "log files" } else { "files" }, [words]);
    }
}

fn walk(root: &Path, directory: &Path, found: &mut Vec<(String, FileType)>) {
    // A file that is removed during the walk is not listed.
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let path = entry.path();
        let relative = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        // containerd renames a bundle to `.name` before it removes it; after a kill in between it never
        // removes it.
        let is_dying = directory.parent().is_some_and(|parent| parent.ends_with(BUNDLES))
            && entry.file_name().to_string_lossy().starts_with('.');
        if is_dying {
            continue;
        }
        let is_snapshot = entry.file_name().to_string_lossy().starts_with(MANAGER_SNAPSHOT);
        if !directory.ends_with(BUNDLES) && !is_snapshot {
            found.push((relative, kind));
        }
        let is_closed = SKIPPED_DIRS.iter().any(|name| entry.file_name() == **name);
        if kind.is_dir() && !is_closed {
            walk(root, &path, found);
        }
    }
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "directory",
        kind if kind.is_symlink() => "link",
        kind if kind.is_socket() => "socket",
        kind if kind.is_fifo() => "pipe",
        _ => "file",
    }
}
