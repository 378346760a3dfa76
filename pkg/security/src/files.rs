//! Files with keys: written atomically, readable by their owner only.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::MaterialError;

/// Maximum file size, far above any bundle of certificates or keyring.
const MAX_FILE: u64 = 16 << 20;

/// Why a file with certificates or keys could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Reading failed.
    #[error("cannot read {}: check that it exists and belongs to this user", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Writing failed. The old file is unchanged, unless the new one took its place and may not be durable.
    #[error("cannot write {}: check that its directory exists, is writable and has free space", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Others can read a private key.
    #[error(
        "{} holds a private key and others may read it (mode {mode:04o}): run `chmod 600 {}`, and replace \
         the key if it may have been read", path.display(), path.display()
    )]
    InsecureMode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The content is invalid.
    #[error(
        "{} is not the certificate and key that were written there: restore it from a backup",
        path.display()
    )]
    Material {
        /// The file.
        path: PathBuf,
        /// The error.
        source: MaterialError,
    },
}

impl FileError {
    /// Whether the disk is full.
    pub fn is_out_of_space(&self) -> bool {
        let full = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        };
        matches!(self, Self::Write { source, .. } if full(source))
    }
}

/// Writes a file of mode 0600 atomically and durably: a crash leaves the old content or the new.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), FileError> {
    write(path, content, 0o600).map_err(|source| FileError::Write { path: path.to_owned(), source })
}

/// Writes a public file of mode 0644 in the same way.
pub fn write_public(path: &Path, content: &[u8]) -> Result<(), FileError> {
    write(path, content, 0o644).map_err(|source| FileError::Write { path: path.to_owned(), source })
}

/// Creates a directory and its missing parents with mode 0700. Existing ones are not changed.
pub fn ensure_private_dir(path: &Path) -> Result<(), FileError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| FileError::Write { path: path.to_owned(), source })
}

/// The same in a directory that must exist.
pub fn ensure_private_subdir(path: &Path) -> Result<(), FileError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(|source| FileError::Write { path: path.to_owned(), source }),
    }
}

/// Reads a text file, and refuses one that others can read.
pub fn read_private(path: &Path) -> Result<Zeroizing<String>, FileError> {
    let mut bytes = read_private_bytes(path)?;
    String::from_utf8(std::mem::take(&mut *bytes)).map(Zeroizing::new).map_err(|error| {
        // Return the bytes to a buffer that wipes them.
        *bytes = error.into_bytes();
        let source = io::Error::new(io::ErrorKind::InvalidData, "not valid UTF-8");
        FileError::Read { path: path.to_owned(), source }
    })
}

/// Reads a file, and refuses one that others can read.
pub fn read_private_bytes(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let read = |source| FileError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read)?;
    let metadata = file.metadata().map_err(read)?;
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(FileError::InsecureMode { path: path.to_owned(), mode });
    }
    if metadata.len() > MAX_FILE {
        return Err(read(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 16 MiB")));
    }
    // Capacity for the whole file and the final read: growing would leave a copy in freed memory.
    let capacity = usize::try_from(metadata.len()).expect("bounded above") + 32;
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    file.take(MAX_FILE).read_to_end(&mut bytes).map_err(read)?;
    Ok(bytes)
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name =
        path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut partial_name = std::ffi::OsString::from(".");
    partial_name.push(name);
    partial_name.push(".partial");
    let partial = directory.join(partial_name);

    // Opened first: a failure after the renaming leaves the new file in place.
    let opened = File::open(directory)?;
    let mut file = lock_partial(&partial)?;
    let written = write_and_sync(&mut file, content, mode).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // Still locked, so it can be removed safely. A remaining file is reused by the next write.
        let _ = fs::remove_file(&partial);
    }
    written?;
    // Makes the rename itself durable.
    opened.sync_all()
}

fn write_and_sync(file: &mut File, content: &[u8], mode: u32) -> io::Result<()> {
    file.set_len(0)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

/// Opens and locks the temporary file. Its name is fixed, so that the leftover of a crash is reused; the lock
/// serializes writers. A writer that waited for the lock has a file that was renamed meanwhile, and opens it again.
fn lock_partial(partial: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(partial)?;
        file.lock()?;
        let held = file.metadata()?;
        match fs::symlink_metadata(partial) {
            Ok(named) if (named.dev(), named.ino()) == (held.dev(), held.ino()) => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn private_file_replaces_a_readable_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.pem");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        for _ in 0..2 {
            write_private(&path, b"secret").unwrap();
            assert_eq!((mode(&path), read_private(&path).unwrap().as_str()), (0o600, "secret"));
        }
        write_public(&path, b"known").unwrap();
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap()), (0o644, "known".to_owned()));
        assert_eq!(entries(dir.path()), ["node.pem"]);
    }

    #[test]
    fn key_readable_by_others_is_refused_with_hint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.pem");
        write_private(&path, b"secret").unwrap();
        for open in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, Permissions::from_mode(open)).unwrap();
            let refused = read_private(&path).unwrap_err();
            assert!(matches!(refused, FileError::InsecureMode { mode, .. } if mode == open));
            assert!(refused.to_string().contains(&format!("chmod 600 {}", path.display())));
        }
    }

    #[test]
    fn leftover_partial_file_is_reused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.pem");
        fs::write(dir.path().join(".node.pem.partial"), "half of a longer text that a crash cut").unwrap();
        write_private(&path, b"whole").unwrap();
        assert_eq!(read_private(&path).unwrap().as_str(), "whole");
        assert_eq!(entries(dir.path()), ["node.pem"]);
    }

    #[test]
    fn failed_write_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir_all(path.join("inside")).unwrap();
        let refused = write_private(&path, b"secret").unwrap_err();
        assert!(matches!(refused, FileError::Write { path: named, .. } if named == path));
        assert_eq!(entries(dir.path()), ["taken"]);
        let missing = dir.path().join("no/such/file");
        assert!(matches!(write_private(&missing, b"x"), Err(FileError::Write { .. })));
        assert!(matches!(read_private(&missing), Err(FileError::Read { .. })));
    }

    #[test]
    fn concurrent_writers_leave_one_complete_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contexts.toml");
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..10 {
                        write_private(path, &[b'a' + writer; 5_000]).unwrap();
                    }
                });
            }
        });
        let text = read_private(&path).unwrap();
        assert_eq!(text.len(), 5_000);
        assert!(text.bytes().all(|byte| byte == text.as_bytes()[0]));
        assert_eq!(entries(dir.path()), ["contexts.toml"]);
    }

    #[test]
    fn private_directories_have_mode_0700_and_can_be_made_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        ensure_private_dir(&path).unwrap();
        ensure_private_dir(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
        let below = path.join("c");
        for _ in 0..2 {
            ensure_private_subdir(&below).unwrap();
        }
        assert_eq!(mode(&below), 0o700);
        assert!(ensure_private_subdir(&path.join("d/e")).is_err() && !path.join("d").exists());
    }
}
