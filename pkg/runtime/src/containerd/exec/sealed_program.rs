//! `warren-exec` in sealed memory: one file, from which this process starts it for all containers.
//!
//! Containers can open the file: it is what `/proc/self/exe` executes in one, whose root owns it. What a container does
//! to it must not change what is executed elsewhere. It can cost time, since a new file takes some milliseconds in
//! which other starts wait, and memory, since the agent is charged for each file that a container keeps open:
//!
//! * The seals exclude writing, resizing and further seals (CVE-2019-5736), and since Linux 6.3 also changes of who may
//!   execute it.
//! * A change of its owner, mode or attributes is found before the next start, which uses a new file.
//! * The kernel does not execute a file that is open for writing, although its seals exclude that. The start is then
//!   repeated with a new file, which no container has opened yet.
//! * A write lease would delay each start. The kernel grants none while another process has opened the file for reading
//!   only, as this process has.
//!
//! No child keeps it open: it is closed on exec.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use warren_container_programs::exec_program;

/// A container can change the file at each start, so not all changes are logged.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The program, made when it is first needed.
#[derive(Default)]
pub(crate) struct SealedProgram {
    current: Mutex<Option<Arc<SealedFile>>>,
    last_warning: Mutex<Option<Instant>>,
}

/// A file that can be executed by its path.
struct SealedFile {
    /// Open for reading.
    file: File,
    made: FileState,
}

/// What a container could change.
#[derive(PartialEq, Eq)]
struct FileState {
    mode: u32,
    owner: (u32, u32),
    /// Seconds and nanoseconds; also of a change of extended attributes.
    changed_at: (i64, i64),
}

impl SealedProgram {
    /// Starts the program by `start`, which gets its path: in this process, and in its children before their exec.
    /// Blocks for some milliseconds when it makes a file.
    ///
    /// # Errors
    /// Those of `start`. There is no memory for the file, or the kernel refuses to make or to seal it.
    pub(super) fn start<T>(&self, start: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
        let file = self.file()?;
        match start(&file.path()) {
            // A container has it open for writing, or changed it a moment ago.
            Err(error)
                if matches!(error.kind(), ErrorKind::ExecutableFileBusy | ErrorKind::PermissionDenied) =>
            {
                if self.is_warning_due(Instant::now()) {
                    tracing::warn!(%error, "cannot start warren-exec; trying it with a new file");
                }
                self.discard(&file);
                start(&self.file()?.path())
            }
            started => started,
        }
    }

    /// The file, or a new one.
    fn file(&self) -> io::Result<Arc<SealedFile>> {
        let mut current = self.lock();
        if let Some(file) = current.as_ref().filter(|file| file.is_unchanged()) {
            return Ok(Arc::clone(file));
        }
        if current.is_some() && self.is_warning_due(Instant::now()) {
            tracing::warn!("a container changed the file of warren-exec; the next one runs from a new file");
        }
        let file = Arc::new(SealedFile::create()?);
        *current = Some(Arc::clone(&file));
        Ok(file)
    }

    fn discard(&self, file: &Arc<SealedFile>) {
        self.lock().take_if(|current| Arc::ptr_eq(current, file));
    }

    /// Whether there was no warning in the last interval; then this is one.
    fn is_warning_due(&self, now: Instant) -> bool {
        let mut last = self.last_warning.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| now.duration_since(last) >= WARNING_INTERVAL);
        if is_due {
            *last = Some(now);
        }
        is_due
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<SealedFile>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SealedFile {
    fn create() -> io::Result<Self> {
        let (name, flags) = (c"warren-exec", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING);
        // Without this flag, a node with `vm.memfd_noexec` makes files that cannot be executed.
        let memory = match memfd_create(name, flags | MFdFlags::from_bits_retain(libc::MFD_EXEC)) {
            // Before Linux 6.3.
            Err(Errno::EINVAL) => memfd_create(name, flags),
            other => other,
        };
        let mut memory = File::from(memory?);
        io::copy(&mut exec_program(), &mut memory)?;
        // Before Linux 6.3 the kernel does not know it.
        let _ = fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::from_bits_retain(libc::F_SEAL_EXEC)));
        let seals =
            SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
        let file = File::open(path(&memory))?;
        let made = FileState::of(&file)?;
        Ok(Self { file, made })
    }

    /// Valid as long as this value exists.
    fn path(&self) -> PathBuf {
        path(&self.file)
    }

    fn is_unchanged(&self) -> bool {
        FileState::of(&self.file).is_ok_and(|now| now == self.made)
    }
}

fn path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

impl FileState {
    fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            mode: found.mode(),
            owner: (found.uid(), found.gid()),
            changed_at: (found.ctime(), found.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{OpenOptions, Permissions};
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::process::Command;

    use nix::fcntl::FdFlag;

    use super::*;

    fn inode(file: &SealedFile) -> u64 {
        file.file.metadata().unwrap().ino()
    }

    fn version(program: &SealedProgram) -> String {
        let output = program.start(|path| Command::new(path).arg("--version").output()).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn one_file_is_executed_again_and_again() {
        let program = SealedProgram::default();
        // A child that another test has just started may have it open for writing.
        let run = || Command::new(program.file().unwrap().path()).arg("--version").output();
        while run().is_err_and(|error| error.kind() == ErrorKind::ExecutableFileBusy) {}
        let first = inode(&program.file().unwrap());
        for _ in 0..2 {
            assert_eq!(version(&program), "warren-exec 1\n");
            assert_eq!(inode(&program.file().unwrap()), first);
        }
    }

    #[test]
    fn file_that_is_open_for_writing_is_replaced() {
        let program = SealedProgram::default();
        let path = program.file().unwrap().path();
        let open = OpenOptions::new().write(true).open(path).unwrap();
        assert_eq!(version(&program), "warren-exec 1\n");
        assert!(program.file().unwrap().is_unchanged());
        drop(open);
    }

    #[test]
    fn error_of_a_new_file_is_returned() {
        let (program, starts) = (SealedProgram::default(), std::cell::Cell::new(0));
        let error = program.start(|_| {
            starts.set(starts.get() + 1);
            io::Result::<()>::Err(ErrorKind::PermissionDenied.into())
        });
        assert_eq!((error.unwrap_err().kind(), starts.get()), (ErrorKind::PermissionDenied, 2));
    }

    #[test]
    fn file_cannot_be_written_nor_inherited() {
        let program = SealedProgram::default();
        let file = program.file().unwrap();
        let seals = fcntl(&file.file, FcntlArg::F_GET_SEALS).unwrap();
        assert_eq!(seals & 0xf, 0xf, "seal, shrink, grow and write");
        let flags = fcntl(&file.file, FcntlArg::F_GETFD).unwrap();
        assert!(FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC));
        assert!((&file.file).write(b"x").is_err(), "it is open for reading only");
        let mut writable = OpenOptions::new().write(true).open(file.path()).unwrap();
        let size = file.file.metadata().unwrap().len();
        for refused in [writable.write(b"x").map(drop), writable.set_len(0), writable.set_len(2 * size)] {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
    }

    #[test]
    fn warnings_are_limited() {
        let (program, begun) = (SealedProgram::default(), Instant::now());
        let due = [0, 1, 59, 60, 61, 120].map(|s| program.is_warning_due(begun + Duration::from_secs(s)));
        assert_eq!(due, [true, false, false, true, false, true]);
    }

    #[test]
    fn changed_file_is_replaced() {
        let program = SealedProgram::default();
        let first = program.file().unwrap();
        chown(first.path(), Some(1000), None).unwrap();
        let second = program.file().unwrap();
        assert_ne!(inode(&first), inode(&second));
        // Without the x bits, which the kernel may have sealed: all others can be changed.
        std::fs::set_permissions(second.path(), Permissions::from_mode(0o4777)).unwrap();
        let third = program.file().unwrap();
        assert_ne!(inode(&second), inode(&third));
        assert!(third.is_unchanged());
    }
}
