//! The tmpfs for files of secrets and configs. None of it is ever written to a disk, not even as swap.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};

/// nosuid, nodev, noexec.
const FLAGS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);
/// Root only, and tasks with large secret objects cannot take all memory. `noswap`: Linux 6.4.
const TMPFS: &str = "mode=0700,size=25%,noswap";
/// For earlier kernels: ramfs is never swapped, and its use is bounded by the size of secret objects.
const RAMFS: &str = "mode=0700";
/// Source: `include/uapi/linux/magic.h`.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// The tmpfs, or a plain directory in tests. Clones share it.
#[derive(Debug, Clone)]
pub struct SecretTmpfs {
    path: PathBuf,
    kind: TmpfsKind,
    /// Held during check and mount, so that it is mounted once.
    mount_lock: Arc<Mutex<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TmpfsKind {
    Mounted,
    #[cfg(test)]
    PlainDir,
}

/// The tmpfs cannot be mounted or removed.
#[derive(Debug, thiserror::Error)]
pub enum SecretTmpfsError {
    /// Creation of the mount point failed.
    #[error("cannot create {path} for secrets and configs: {source}")]
    CreateDir {
        /// Path of the mount point.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// Mounting failed.
    #[error("cannot mount a tmpfs at {path} for secrets and configs: {source}")]
    Mount {
        /// Path of the mount point.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// Unmounting failed.
    #[error("cannot unmount the tmpfs for secrets and configs at {path}: {source}")]
    Remove {
        /// Path of the mount point.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
}

impl SecretTmpfs {
    /// The tmpfs of the node with this volatile directory. Nothing is mounted yet.
    pub fn in_run_dir(run_dir: &Path) -> Self {
        Self { path: run_dir.join("secrets"), kind: TmpfsKind::Mounted, mount_lock: Arc::default() }
    }

    /// A plain directory, for tests without a mount.
    #[cfg(test)]
    pub fn plain_dir(path: PathBuf) -> Self {
        Self { path, kind: TmpfsKind::PlainDir, mount_lock: Arc::default() }
    }

    /// Path of the mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts it, unless this or an earlier agent did.
    ///
    /// # Errors
    /// Neither tmpfs nor ramfs can be mounted.
    pub(crate) fn ensure(&self) -> Result<(), SecretTmpfsError> {
        let _alone = self.mount_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_present() {
            return Ok(());
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.map_err(|source| SecretTmpfsError::CreateDir { path: self.path.clone(), source })?;
        if self.kind == TmpfsKind::Mounted {
            let kind = mount_at(&self.path);
            let kind = kind
                .map_err(|errno| SecretTmpfsError::Mount { path: self.path.clone(), source: errno.into() })?;
            tracing::info!(path = %self.path.display(), kind, "mounted tmpfs for secrets and configs");
        }
        Ok(())
    }

    /// Whether it is mounted.
    pub(crate) fn is_present(&self) -> bool {
        match self.kind {
            TmpfsKind::Mounted => is_mounted(&self.path),
            #[cfg(test)]
            TmpfsKind::PlainDir => self.path.is_dir(),
        }
    }

    /// Unmounts it with all files, if mounted: for a node that leaves.
    ///
    /// # Errors
    /// The system refused.
    pub(crate) fn remove(&self) -> Result<(), SecretTmpfsError> {
        let _alone = self.mount_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| SecretTmpfsError::Remove { path: self.path.clone(), source };
        while self.kind == TmpfsKind::Mounted && is_mounted(&self.path) {
            // Open files stay readable for their holders, but cannot be reached any more.
            umount2(&self.path, MntFlags::MNT_DETACH).map_err(|errno| failed(errno.into()))?;
        }
        match fs::remove_dir_all(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed(source)),
            _ => Ok(()),
        }
    }
}

/// Mounts the best type that the kernel supports, and returns its name.
fn mount_at(path: &Path) -> nix::Result<&'static str> {
    let mount = |kind: &'static str, options: &str| {
        mount(Some(kind), path, Some(kind), FLAGS, Some(options)).map(|()| kind)
    };
    match mount("tmpfs", TMPFS) {
        Err(Errno::EINVAL) => mount("ramfs", RAMFS),
        other => other,
    }
}

/// Whether a tmpfs or ramfs is mounted exactly here.
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

    /// Runs `work` with a directory on a thread in its own mount namespace, whose mounts end with it. The directory is
    /// removed outside of the namespace, where nothing is mounted in it.
    fn in_own_mount_namespace(work: impl FnOnce(&Path) + Send + 'static) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).unwrap();
            work(&path);
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        dir.close().unwrap();
    }

    /// The mounts at a path, as this thread sees them.
    fn mounts(path: &Path) -> Vec<String> {
        let all = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        let at = format!(" {} ", path.display());
        all.lines().filter(|line| line.contains(&at)).map(str::to_owned).collect()
    }

    #[test]
    fn tmpfs_is_mounted_once_root_only_and_removed_with_contents() {
        in_own_mount_namespace(|dir| {
            let memory = SecretTmpfs::in_run_dir(dir);
            assert!(!memory.is_present());
            memory.remove().unwrap();
            for _ in 0..2 {
                memory.ensure().unwrap();
            }
            // A later agent finds it.
            SecretTmpfs::in_run_dir(dir).ensure().unwrap();
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
    fn tmpfs_is_bounded_and_noswap_where_supported() {
        in_own_mount_namespace(|dir| {
            let memory = SecretTmpfs::in_run_dir(dir);
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
    fn parent_tmpfs_is_not_mistaken_for_ours() {
        in_own_mount_namespace(|dir| {
            mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
            let memory = SecretTmpfs::in_run_dir(dir);
            fs::create_dir(memory.path()).unwrap();
            assert!(!memory.is_present());
            memory.ensure().unwrap();
            assert!(memory.is_present());
            // A file system on disk that was mounted there does not count: it is hidden.
            memory.remove().unwrap();
            fs::create_dir_all(memory.path()).unwrap();
            fs::create_dir(dir.join("other")).unwrap();
            let (from, to) = (dir.join("other"), memory.path());
            mount(Some(&from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            assert!(!memory.is_present());
        });
    }

    #[test]
    fn kernel_without_noswap_gets_ramfs() {
        in_own_mount_namespace(|dir| {
            let refused = mount(Some("tmpfs"), dir, Some("tmpfs"), FLAGS, Some("mode=0700,no-such-option"));
            assert_eq!(refused, Err(Errno::EINVAL), "as noswap is by a kernel that does not know it");
            mount(Some("ramfs"), dir, Some("ramfs"), FLAGS, Some(RAMFS)).unwrap();
            assert!(is_mounted(dir));
            let mode = fs::metadata(dir).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o700);
        });
    }

    #[test]
    fn mount_error_names_path() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("file");
        fs::write(&place, "").unwrap();
        let error = SecretTmpfs::in_run_dir(&place).ensure().unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("cannot create {}/secrets", place.display())),
            "{error}"
        );
    }
}
