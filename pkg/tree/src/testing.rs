//! Directories that only a container can make.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, mkdirat, mknodat};

use crate::open_directory;

/// Nests directories, each with an empty file beside the next: a path to the deepest may be longer than any path.
/// Returns the deepest.
pub(crate) fn nest(root: &Path, name: &str, depth: u32) -> OwnedFd {
    let mut directory: OwnedFd = File::open(root).unwrap().into();
    for _ in 0..depth {
        mkdirat(&directory, name, Mode::S_IRWXU).unwrap();
        mknodat(&directory, "file", SFlag::S_IFREG, Mode::S_IRWXU, 0).unwrap();
        directory = open_directory(&directory, Path::new(name)).unwrap();
    }
    directory
}
