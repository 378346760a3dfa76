//! Writes the programs embedded in this library to an executable path.
//!
//! Linux refuses to execute a file that any process has open for writing (ETXTBSY). Both ways to reach that
//! state are excluded. A running program is never written to: the new one is written under a temporary name
//! and then renamed over the old one. And when another thread of this process starts a child while the new
//! file is still open here, the child has the file open too until its own exec, which cannot be observed.
//! So the new program is executed under its temporary name until that succeeds. Then no process has it open
//! for writing, and none will: every writable descriptor descended from the closed one.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::error::Error;

/// An embedded program.
struct EmbeddedProgram {
    name: &'static str,
    /// zlib-compressed content.
    compressed: &'static [u8],
    /// SHA-256 of the program, to check an installed copy without unpacking this one.
    digest: &'static [u8; 32],
}

macro_rules! embedded {
    ($name:literal) => {
        EmbeddedProgram {
            name: $name,
            compressed: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".zlib")),
            digest: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".sha256")),
        }
    };
}

const LOGGER: EmbeddedProgram = embedded!("warren-logger");
const INIT: EmbeddedProgram = embedded!("warren-init");
const EXEC: EmbeddedProgram = embedded!("warren-exec");
const NAMESPACES: EmbeddedProgram = embedded!("warren-namespaces");

/// Executable by all, writable only by the owner: containers may run as any user.
const FILE_MODE: u32 = 0o755;
/// How long a child process may take until its exec.
const MAX_BUSY: Duration = Duration::from_secs(10);
/// Interval between attempts to execute.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Paths of the installed programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPrograms {
    /// For the URI of a container's output, with its arguments as the query.
    pub logger: PathBuf,
    /// For a mount into a container, run as `init -- PROGRAM ARGUMENT...`.
    pub init: PathBuf,
    /// Makes namespaces, which its caller binds to files.
    pub namespaces: PathBuf,
}

impl ContainerPrograms {
    /// The paths in `dir`, which [`ensure_installed`] writes.
    #[must_use]
    pub fn in_dir(dir: &Path) -> Self {
        let path = |program: &EmbeddedProgram| dir.join(program.name);
        Self { logger: path(&LOGGER), init: path(&INIT), namespaces: path(&NAMESPACES) }
    }
}

/// Ensures that `dir`, which must exist, has the [`ContainerPrograms`] of this version, and that they can be executed.
/// Up-to-date programs are not written. Blocks for some milliseconds when it writes; processes that share a
/// directory may call it concurrently.
///
/// # Errors
/// [`Error::Install`] and [`Error::Execute`].
pub fn ensure_installed(dir: &Path) -> Result<ContainerPrograms, Error> {
    for program in [LOGGER, INIT, NAMESPACES] {
        ensure(dir, &program)?;
    }
    Ok(ContainerPrograms::in_dir(dir))
}

/// `warren-exec`, which is executed from sealed memory only, with a socket for the messages of [`plan`](crate::plan) as
/// its standard input.
#[must_use]
pub fn exec_program() -> impl Read {
    EXEC.unpacked()
}

fn ensure(dir: &Path, program: &EmbeddedProgram) -> Result<(), Error> {
    let name = program.name;
    let path = dir.join(name);
    if is_installed(&path, program) {
        return Ok(());
    }
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let new = dir.join(format!(".{name}.{}.{count}", std::process::id()));
    remove_leftovers(dir, name);
    // A process with the same id may have died before its rename.
    let _ = std::fs::remove_file(&new);
    let failed = |source| Error::Install { path: path.clone(), source };
    let installed = write(&new, program.unpacked())
        .map_err(failed)
        .and_then(|()| wait_until_executable(&new))
        .and_then(|()| std::fs::rename(&new, &path).map_err(failed));
    if installed.is_err() {
        // A leftover is removed by the next installation.
        let _ = std::fs::remove_file(&new);
    }
    installed
}

impl EmbeddedProgram {
    fn unpacked(&self) -> impl Read {
        flate2::read::ZlibDecoder::new(self.compressed)
    }
}

/// Whether the file has this content and mode. Read errors are reported by the write that follows.
fn is_installed(path: &Path, program: &EmbeddedProgram) -> bool {
    let is_alike = |metadata: std::fs::Metadata| {
        metadata.is_file() && metadata.permissions().mode() & 0o7777 == FILE_MODE
    };
    std::fs::symlink_metadata(path).is_ok_and(is_alike)
        && digest(path).is_ok_and(|found| found == *program.digest)
}

/// Hashes in chunks, so that the whole program does not stay in memory.
fn digest(path: &Path) -> std::io::Result<[u8; 32]> {
    let (mut file, mut hasher, mut part) = (File::open(path)?, Sha256::new(), [0; 8 << 10]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok(hasher.finalize().into()),
            count => hasher.update(&part[..count]),
        }
    }
}

fn write(path: &Path, mut program: impl Read) -> std::io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    std::io::copy(&mut program, &mut file)?;
    // The umask may have removed permissions.
    file.set_permissions(Permissions::from_mode(FILE_MODE))
}

fn wait_until_executable(path: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + MAX_BUSY;
    let failed = |reason: String| Error::Execute { path: path.to_owned(), reason };
    loop {
        let mut command = Command::new(path);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => return Err(failed(format!("it ended with {status}"))),
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            Err(error) => return Err(failed(error.to_string())),
        }
    }
}

/// Removes leftovers of dead processes only: a living one may be about to rename its file.
fn remove_leftovers(dir: &Path, name: &str) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let parts =
            file.to_str().and_then(|file| file.strip_prefix('.')?.strip_prefix(name)?.strip_prefix('.'));
        let Some((pid, _)) = parts.and_then(|parts| parts.split_once('.')) else { continue };
        let is_number = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && !Path::new("/proc").join(pid).exists() {
            // A leftover does no harm.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use warren_testkit::scratch::ScratchDir;

    fn inode(path: &Path) -> u64 {
        std::fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn second_install_writes_nothing() {
        let scratch = ScratchDir::new();
        let programs = ensure_installed(scratch.path()).unwrap();
        let before = (inode(&programs.logger), inode(&programs.init));
        assert_eq!(ensure_installed(scratch.path()).unwrap(), programs);
        assert_eq!((inode(&programs.logger), inode(&programs.init)), before);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 3);
    }

    #[test]
    fn changed_program_is_replaced_while_running() {
        let scratch = ScratchDir::new();
        let path = scratch.path().join("warren-init");
        warren_testkit::scratch::install(&path, &std::fs::read("/bin/sleep").unwrap());
        let mut old = Command::new(&path).arg("60").spawn().unwrap();
        let programs = ensure_installed(scratch.path()).unwrap();
        assert_eq!(digest(&programs.init).unwrap(), *INIT.digest);
        assert!(old.try_wait().unwrap().is_none(), "the old program must run on");
        old.kill().unwrap();
        old.wait().unwrap();

        std::fs::set_permissions(&programs.logger, Permissions::from_mode(0o644)).unwrap();
        ensure_installed(scratch.path()).unwrap();
        assert_eq!(std::fs::metadata(&programs.logger).unwrap().permissions().mode() & 0o7777, FILE_MODE);
    }

    #[test]
    fn only_leftovers_of_dead_processes_are_removed() {
        let scratch = ScratchDir::new();
        // No process can have this id: the kernel's limit is 2^22.
        let (dead, own) = (".warren-logger.99999999.0", format!(".warren-logger.{}.x", std::process::id()));
        for name in [dead, &own, ".warren-logger.other"] {
            std::fs::write(scratch.path().join(name), "").unwrap();
        }
        ensure_installed(scratch.path()).unwrap();
        assert!(!scratch.path().join(dead).exists());
        assert!(scratch.path().join(own).exists());
        assert!(scratch.path().join(".warren-logger.other").exists());
    }

    #[test]
    fn unusable_dir_is_named() {
        let scratch = ScratchDir::new();
        let error = ensure_installed(&scratch.path().join("none")).unwrap_err();
        assert!(matches!(error, Error::Install { .. }), "{error}");

        let mounted = scratch.path().join("mounted");
        std::fs::create_dir(&mounted).unwrap();
        let target = mounted.to_str().unwrap();
        warren_testkit::tool::run("mount", ["-t", "tmpfs", "-o", "noexec", "none", target]);
        let error = ensure_installed(&mounted).unwrap_err();
        assert!(matches!(error, Error::Execute { .. }), "{error}");
        assert_eq!(std::fs::read_dir(&mounted).unwrap().count(), 0);
    }

    #[test]
    fn install_succeeds_while_other_threads_fork() {
        let scratch = ScratchDir::new();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        assert!(Command::new("true").status().unwrap().success());
                    }
                });
            }
            for round in 0..warren_testkit::soak::count(20, 500) {
                let dir = scratch.path().join(round.to_string());
                std::fs::create_dir(&dir).unwrap();
                let programs = ensure_installed(&dir).unwrap();
                for program in [programs.logger, programs.init] {
                    let output = Command::new(program).arg("--version").output();
                    if !output.is_ok_and(|output| output.status.success()) {
                        is_done.store(true, Ordering::Relaxed);
                        panic!("cannot execute in round {round}");
                    }
                }
                std::fs::remove_dir_all(dir).unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
    }
}
