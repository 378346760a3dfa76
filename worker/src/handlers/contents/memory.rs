//! The file system in memory that the files of secrets and configs lie in. None of it is ever written to a disk, by
//! the kernel for want of memory neither.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};

/// Nothing on it can be run, is a device, or gives rights.
const FLAGS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);
/// Only root gets in, and a task with many large contents cannot take the machine's memory. `noswap`: Linux 6.4.
const TMPFS: &str = "mode=0700,size=25%,noswap";
/// For kernels before that: it is never swapped, and what tasks can put there is bounded by what contents may have.
const RAMFS: &str = "mode=0700";
/// Source: `include/uapi/linux/magic.h`.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// The file system, or in tests a directory in place of it. Clones are the same.
#[derive(Debug, Clone)]
pub struct Memory {
    path: PathBuf,
    kind: Kind,
    /// Held while it is looked whether it is mounted, so that it is mounted once.
    looking: Arc<Mutex<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mounted,
    #[cfg(test)]
    Plain,
}

/// Why there is no such file system, or why it does not go.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The place for it.
    #[error("cannot make {path} for secrets and configs: {source}")]
    Make {
        /// The place.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The mount.
    #[error("cannot mount a file system in memory at {path} for secrets and configs: {source}")]
    Mount {
        /// The place.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its removal.
    #[error("cannot unmount {path}, which secrets and configs were in: {source}")]
    Remove {
        /// The place.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Memory {
    /// That of the node whose volatile files are in `run_dir`. Nothing is mounted yet.
    pub fn of(run_dir: &Path) -> Self {
        Self { path: run_dir.join("secrets"), kind: Kind::Mounted, looking: Arc::default() }
    }

    /// A directory, for tests that need no mount.
    #[cfg(test)]
    pub fn plain(path: PathBuf) -> Self {
        Self { path, kind: Kind::Plain, looking: Arc::default() }
    }

    /// Where it is, or would be.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts it, unless that was done: by this agent or by one before it.
    ///
    /// # Errors
    /// Neither kind of file system can be mounted.
    pub(crate) fn ensure(&self) -> Result<(), MemoryError> {
        let _alone = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_there() {
            return Ok(());
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.map_err(|source| MemoryError::Make { path: self.path.clone(), source })?;
        if self.kind == Kind::Mounted {
            let kind = mount_at(&self.path);
            let kind =
                kind.map_err(|errno| MemoryError::Mount { path: self.path.clone(), source: errno.into() })?;
            tracing::info!(path = %self.path.display(), kind, "mounted what secrets and configs lie in");
        }
        Ok(())
    }

    /// Whether files can be looked for in it.
    pub(crate) fn is_there(&self) -> bool {
        match self.kind {
            Kind::Mounted => is_mounted(&self.path),
            #[cfg(test)]
            Kind::Plain => self.path.is_dir(),
        }
    }

    /// Removes it with everything in it: for the end of a node. Harmless when there is none.
    ///
    /// # Errors
    /// The system does not let it go.
    pub(crate) fn remove(&self) -> Result<(), MemoryError> {
        let _alone = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| MemoryError::Remove { path: self.path.clone(), source };
        while self.kind == Kind::Mounted && is_mounted(&self.path) {
            // Whoever has a file open keeps it for himself; nobody else comes to it any more.
            umount2(&self.path, MntFlags::MNT_DETACH).map_err(|errno| failed(errno.into()))?;
        }
        match fs::remove_dir_all(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed(source)),
            _ => Ok(()),
        }
    }
}

/// Mounts the best kind that the kernel has, and says which.
fn mount_at(path: &Path) -> nix::Result<&'static str> {
    let mount = |kind: &'static str, options: &str| {
        mount(Some(kind), path, Some(kind), FLAGS, Some(options)).map(|()| kind)
    };
    match mount("tmpfs", TMPFS) {
        Err(Errno::EINVAL) => mount("ramfs", RAMFS),
        other => other,
    }
}

/// Whether a file system in memory begins exactly here.
fn is_mounted(path: &Path) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|found| found.dev());
    let (own, above) = (device(path), path.parent().and_then(device));
    let in_memory = |kind: FsType| kind == TMPFS_MAGIC || kind == RAMFS_MAGIC;
    own.is_some() && own != above && statfs(path).is_ok_and(|found| in_memory(found.filesystem_type()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Does something on a thread with a mount namespace of its own, with which every mount goes.
    fn alone<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).unwrap();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The mounts at a path, as this thread sees them.
    fn mounts(path: &Path) -> Vec<String> {
        let all = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        let at = format!(" {} ", path.display());
        all.lines().filter(|line| line.contains(&at)).map(str::to_owned).collect()
    }

    #[test]
    fn it_is_mounted_once_for_root_alone_and_goes_with_all_that_is_in_it() {
        alone(|| {
            let dir = tempfile::tempdir().unwrap();
            let memory = Memory::of(dir.path());
            assert!(!memory.is_there());
            memory.remove().unwrap();
            for _ in 0..2 {
                memory.ensure().unwrap();
            }
            // An agent that comes later finds it.
            Memory::of(dir.path()).ensure().unwrap();
            let found = mounts(memory.path());
            assert_eq!(found.len(), 1, "{found:?}");
            for option in ["nosuid", "nodev", "noexec"] {
                assert!(found[0].contains(option), "{found:?}");
            }
            assert!(found[0].contains(" tmpfs ") || found[0].contains(" ramfs "), "{found:?}");
            let mode = fs::metadata(memory.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o700);
            fs::write(memory.path().join("x"), "hush").unwrap();
            for _ in 0..2 {
                memory.remove().unwrap();
                assert!(mounts(memory.path()).is_empty() && !memory.path().exists());
            }
        });
    }

    #[test]
    fn it_is_bounded_and_not_swapped_where_the_kernel_can_do_that() {
        alone(|| {
            let dir = tempfile::tempdir().unwrap();
            let memory = Memory::of(dir.path());
            memory.ensure().unwrap();
            let found = mounts(memory.path()).remove(0);
            match found.contains(" tmpfs ") {
                true => assert!(found.contains("noswap") && found.contains("size="), "{found}"),
                // A kernel before 6.4.
                false => assert!(found.contains(" ramfs "), "{found}"),
            }
        });
    }

    #[test]
    fn a_file_system_in_memory_that_it_lies_on_is_not_taken_for_it() {
        alone(|| {
            let dir = tempfile::tempdir().unwrap();
            mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
            let memory = Memory::of(dir.path());
            fs::create_dir(memory.path()).unwrap();
            assert!(!memory.is_there());
            memory.ensure().unwrap();
            assert!(memory.is_there());
            // Nor is one that somebody mounted there and that is on a disk: it is hidden.
            memory.remove().unwrap();
            fs::create_dir_all(memory.path()).unwrap();
            fs::create_dir(dir.path().join("other")).unwrap();
            let (from, to) = (dir.path().join("other"), memory.path());
            mount(Some(&from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            assert!(!memory.is_there());
        });
    }

    #[test]
    fn a_kernel_without_the_option_gets_a_ramfs() {
        alone(|| {
            let dir = tempfile::tempdir().unwrap();
            let refused =
                mount(Some("tmpfs"), dir.path(), Some("tmpfs"), FLAGS, Some("mode=0700,no-such-option"));
            assert_eq!(refused, Err(Errno::EINVAL), "as noswap is by a kernel that does not know it");
            mount(Some("ramfs"), dir.path(), Some("ramfs"), FLAGS, Some(RAMFS)).unwrap();
            assert!(is_mounted(dir.path()));
            let mode = fs::metadata(dir.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o700);
        });
    }

    #[test]
    fn what_cannot_be_mounted_is_said_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("file");
        fs::write(&place, "").unwrap();
        let error = Memory::of(&place).ensure().unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("cannot make {}/secrets", place.display())),
            "{error}"
        );
    }
}
