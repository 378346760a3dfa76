//! Reads single files of a container's file system without mounting it: layer by layer, top first.
//!
//! A path is resolved within its layer alone, so that a link in an image cannot lead to a file of the host.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use containerd_client::types::Mount;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// `/etc/passwd` and `/etc/group` of real images are far smaller.
const MAX_FILE: u64 = 1 << 20;

/// The text of a file; `None` if no layer has it.
///
/// # Errors
/// The mounts have no layers on disk, or the file is not a small text file.
pub(crate) fn read(mounts: &[Mount], path: &Path) -> io::Result<Option<String>> {
    for layer in layers(mounts)? {
        let root = File::open(&layer)?;
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let found = match openat2(&root, path, how) {
            Ok(found) => File::from(found),
            Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => continue,
            Err(error) => return Err(error.into()),
        };
        let kind = found.metadata()?;
        // overlayfs marks a deleted file by a character device 0,0 in the layer that deleted it.
        if kind.file_type().is_char_device() && kind.rdev() == 0 {
            return Ok(None);
        }
        if !kind.is_file() || kind.len() > MAX_FILE {
            return Err(io::Error::other(format!("{} in the image is not a small file", path.display())));
        }
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let mut text = String::new();
        File::from(openat2(&root, path, how)?).take(MAX_FILE).read_to_string(&mut text)?;
        return Ok(Some(text));
    }
    Ok(None)
}

/// Directories of the layers, top first. The writable layer is skipped: a user that a container added to its
/// own files must not change the user that it runs as.
fn layers(mounts: &[Mount]) -> io::Result<Vec<PathBuf>> {
    let [mount] = mounts else {
        return Err(io::Error::other(format!("expected one mount, found {}", mounts.len())));
    };
    match mount.r#type.as_str() {
        "overlay" => {
            let lower = mount.options.iter().find_map(|option| option.strip_prefix("lowerdir="));
            Ok(lower
                .unwrap_or_default()
                .split(':')
                .filter(|dir| !dir.is_empty())
                .map(PathBuf::from)
                .collect())
        }
        "bind" => Ok(vec![PathBuf::from(&mount.source)]),
        other => Err(io::Error::other(format!("snapshots of type {other:?} cannot be read layer by layer"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn overlay(dirs: &[&Path]) -> Vec<Mount> {
        let lower: Vec<&str> = dirs.iter().map(|dir| dir.to_str().unwrap()).collect();
        let options = vec!["upperdir=/nowhere".to_owned(), format!("lowerdir={}", lower.join(":"))];
        vec![Mount { r#type: "overlay".into(), options, ..Default::default() }]
    }

    #[test]
    fn topmost_layer_with_file_wins() {
        let dir = tempfile::tempdir().unwrap();
        let (top, bottom) = (dir.path().join("top"), dir.path().join("bottom"));
        fs::create_dir_all(top.join("etc")).unwrap();
        fs::create_dir_all(bottom.join("etc")).unwrap();
        let mounts = overlay(&[&top, &bottom]);
        let read = || read(&mounts, Path::new("etc/passwd"));
        assert_eq!(read().unwrap(), None);
        fs::write(bottom.join("etc/passwd"), "bottom").unwrap();
        assert_eq!(read().unwrap().as_deref(), Some("bottom"));
        fs::write(top.join("etc/passwd"), "top").unwrap();
        assert_eq!(read().unwrap().as_deref(), Some("top"));
    }

    #[test]
    fn a_link_cannot_lead_out_of_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("layer");
        fs::create_dir_all(layer.join("etc")).unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        std::os::unix::fs::symlink("../../secret", layer.join("etc/passwd")).unwrap();
        assert_eq!(read(&overlay(&[&layer]), Path::new("etc/passwd")).unwrap(), None);
        fs::write(layer.join("secret"), "inside").unwrap();
        assert_eq!(read(&overlay(&[&layer]), Path::new("etc/passwd")).unwrap().as_deref(), Some("inside"));
    }

    #[test]
    fn large_or_special_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("etc/passwd")).unwrap();
        assert!(read(&overlay(&[dir.path()]), Path::new("etc/passwd")).is_err());
        let device = vec![Mount { r#type: "ext4".into(), ..Default::default() }];
        assert!(read(&device, Path::new("etc/passwd")).is_err());
    }
}
