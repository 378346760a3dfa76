//! The data directory: used by one process at a time, and of a supported version.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Error, Result,
    error::is_no_space,
    fsync::{sync_dir, sync_parent},
};

/// The layout version of this program, and the latest it reads.
pub const DATA_DIR_VERSION: u32 = 1;

/// A data directory, locked until the last clone is dropped or the process ends.
#[derive(Clone, Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: Arc<Lock>,
}

#[derive(Debug)]
struct Lock(File);

impl DataDir {
    /// Locks the directory for this process. Creates it (readable by its owner only) if needed.
    ///
    /// # Errors
    /// [`Error::InUse`] with the process that uses it, [`Error::NotWritable`] if it cannot be created or
    /// written, [`Error::Newer`] if a later version of Warren has used it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let not_writable = |source| Error::NotWritable { path: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(not_writable)?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(not_writable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::InUse { pid: read_pid(&mut lock), path });
            }
            Err(TryLockError::Error(source)) => return Err(not_writable(source)),
        }
        write_pid(&mut lock).map_err(not_writable)?;
        ensure_version(&path)?;
        sync_parent(&path)?;
        Ok(Self { path, _lock: Arc::new(Lock(lock)) })
    }

    /// The process that has the directory open, if there is one. Only reads: it never disturbs a process that opens
    /// the directory meanwhile.
    pub fn holder(path: &Path) -> Option<u32> {
        let pid = fs::read_to_string(path.join("lock")).ok()?.trim().parse().ok()?;
        // The text of a process that was killed stays, its lock does not.
        let locks = fs::read_to_string("/proc/locks").ok()?;
        holds_lock(&locks, pid).then_some(pid)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Lock {
    /// Closing the file is not enough: a child process between fork and exec has it open as well, and with
    /// it the lock.
    fn drop(&mut self) {
        // If this fails, the kernel releases the lock with the last descriptor.
        let _ = self.0.unlock();
    }
}

/// Whether the process has locked a file as [`DataDir::open`] does, by the text of `/proc/locks` (proc(5)).
fn holds_lock(locks: &str, pid: u32) -> bool {
    let pid = pid.to_string();
    locks.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().skip(1).take(4).collect();
        fields == ["FLOCK", "ADVISORY", "WRITE", pid.as_str()]
    })
}

fn read_pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// The pid is only informative; the lock needs no disk space. A full disk is therefore no error here.
fn write_pid(lock: &mut File) -> io::Result<()> {
    let pid = format!("{}\n", std::process::id());
    // Written in place, since on a full disk released blocks may not be available again.
    let written = lock.write_all(pid.as_bytes()).and_then(|()| lock.set_len(pid.len() as u64));
    let written = match written {
        Err(error) if is_no_space(&error) => lock.set_len(0),
        written => written,
    };
    // Releasing a block changes the file system's own data, for which there may be no space either.
    match written {
        Err(error) if is_no_space(&error) => Ok(()),
        written => written,
    }
}

/// Checks the version of the directory, or writes it into a new one.
fn ensure_version(dir: &Path) -> Result<()> {
    let path = dir.join("version");
    match fs::read_to_string(&path) {
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(found) if found > DATA_DIR_VERSION => {
                Err(Error::Newer { path, found, supported: DATA_DIR_VERSION })
            }
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Corrupt { path, what: format!("`{}` is not a version", text.trim()) }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let temporary = dir.join("version.tmp");
            File::create(&temporary)
                .and_then(|mut file| {
                    writeln!(file, "{DATA_DIR_VERSION}")?;
                    file.sync_data()
                })
                .and_then(|()| fs::rename(&temporary, &path))
                .map_err(|source| Error::NotWritable { path: dir.into(), source })?;
            sync_dir(dir)
        }
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::DataDir;

    #[test]
    fn dropped_lock_is_free_despite_forked_child() {
        let dir = tempfile::tempdir().unwrap();
        let held = DataDir::open(dir.path()).unwrap();
        // Another descriptor of the same open file, like that of a child process before exec.
        let _of_child = held._lock.0.try_clone().unwrap();
        drop(held);
        DataDir::open(dir.path()).unwrap();
    }

    #[test]
    fn holder_is_the_process_with_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(DataDir::holder(dir.path()), None, "nobody ever used it");
        // A process that was killed leaves its number; this one is above those of Linux.
        std::fs::write(dir.path().join("lock"), "4194305\n").unwrap();
        assert_eq!(DataDir::holder(dir.path()), None);
        let held = DataDir::open(dir.path()).unwrap();
        assert_eq!(DataDir::holder(dir.path()), Some(std::process::id()));
        drop(held);
        // Other tests of this process hold locks of their own.
        let locks = "1: FLOCK  ADVISORY  WRITE 708 fe:00:1105922 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 709 fe:00:1105923 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 710 fe:00:1105922 0 EOF\n\
                     4: FLOCK  ADVISORY  READ 711 fe:00:1105924 0 EOF\n";
        let holders: Vec<u32> = (707..712).filter(|pid| super::holds_lock(locks, *pid)).collect();
        assert_eq!(holders, [708]);
    }
}
