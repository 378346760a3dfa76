//! The programs that this library carries, written to where they can be executed.
//!
//! Linux refuses to execute a file that some process has open for writing (ETXTBSY). Two ways lead there, and
//! both are closed. A program that runs is never written to: the new one gets a name of its own and then, by
//! `rename`, that of the old one. And when another thread of this process starts a child while the new file
//! is still open here, that child has the file open too until it executes something itself, which nobody can
//! see or wait for. So the new program is executed before it gets its name, again and again until it can be.
//! Then no process has it open for writing, and since nobody opens it so again, none will: every such file
//! descended from the one that was closed.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::error::Error;

/// A program as it is carried.
struct Carried {
    name: &'static str,
    /// By zlib.
    packed: &'static [u8],
    /// SHA-256 of the program, by which one that is installed is known without unpacking this one.
    digest: &'static [u8; 32],
}

macro_rules! carried {
    ($name:literal) => {
        Carried {
            name: $name,
            packed: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".zlib")),
            digest: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".sha256")),
        }
    };
}

const LOGGER: Carried = carried!("warren-logger");
const INIT: Carried = carried!("warren-init");
const EXEC: Carried = carried!("warren-exec");

/// Everybody may execute, nobody but the owner write: containers may run as any user.
const MODE: u32 = 0o755;
/// How long a child that was just started may take to execute what it was started for.
const BUSY: Duration = Duration::from_secs(10);
/// Between two tries to execute.
const RETRY: Duration = Duration::from_millis(2);

/// Where the programs are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// To be named in the URI of a container's output, with its arguments as the query.
    pub logger: PathBuf,
    /// To be bound into a container, and run as `init -- PROGRAM ARGUMENT...`.
    pub init: PathBuf,
    /// To be started with a [`Plan`](crate::plan::Plan) on its standard input.
    pub exec: PathBuf,
}

/// Makes sure that `dir`, which must exist, has all programs as this version carries them, and that they can
/// be executed. Programs that run on are left alone. Blocks for some milliseconds when something is to be
/// written; processes that share a directory may do it at the same time.
///
/// # Errors
/// [`Error::Install`] and [`Error::Execute`].
pub fn ensure_installed(dir: &Path) -> Result<Programs, Error> {
    Ok(Programs { logger: ensure(dir, &LOGGER)?, init: ensure(dir, &INIT)?, exec: ensure(dir, &EXEC)? })
}

fn ensure(dir: &Path, program: &Carried) -> Result<PathBuf, Error> {
    let name = program.name;
    let path = dir.join(name);
    if is_there(&path, program) {
        return Ok(path);
    }
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let new = dir.join(format!(".{name}.{}.{count}", std::process::id()));
    remove_leftovers(dir, name);
    // An earlier process with the same id may have died before it could rename its own.
    let _ = std::fs::remove_file(&new);
    let failed = |source| Error::Install { path: path.clone(), source };
    let installed = write(&new, program.unpacked())
        .map_err(failed)
        .and_then(|()| wait_until_executable(&new))
        .and_then(|()| std::fs::rename(&new, &path).map_err(failed));
    if installed.is_err() {
        // What is left is removed by the next one that installs.
        let _ = std::fs::remove_file(&new);
    }
    installed.map(|()| path)
}

impl Carried {
    fn unpacked(&self) -> impl Read {
        flate2::read::ZlibDecoder::new(self.packed)
    }
}

/// Whether the file has this content and mode. Whatever keeps it from being read is told when it is written.
fn is_there(path: &Path, program: &Carried) -> bool {
    let is_alike =
        |metadata: std::fs::Metadata| metadata.is_file() && metadata.permissions().mode() & 0o7777 == MODE;
    std::fs::symlink_metadata(path).is_ok_and(is_alike)
        && digest(path).is_ok_and(|found| found == *program.digest)
}

/// In parts: a whole program would stay in this process' memory.
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
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    std::io::copy(&mut program, &mut file)?;
    // The process's own mask may have taken something away.
    file.set_permissions(Permissions::from_mode(MODE))
}

fn wait_until_executable(path: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + BUSY;
    let failed = |reason: String| Error::Execute { path: path.to_owned(), reason };
    loop {
        let mut command = Command::new(path);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => return Err(failed(format!("it ended with {status}"))),
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                std::thread::sleep(RETRY);
            }
            Err(error) => return Err(failed(error.to_string())),
        }
    }
}

/// Removes what processes that died in the middle left, and only that: one that lives may be about to rename
/// its own.
fn remove_leftovers(dir: &Path, name: &str) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let parts =
            file.to_str().and_then(|file| file.strip_prefix('.')?.strip_prefix(name)?.strip_prefix('.'));
        let Some((pid, _)) = parts.and_then(|parts| parts.split_once('.')) else { continue };
        let is_number = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && !Path::new("/proc").join(pid).exists() {
            // It is in nobody's way.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use warren_testkit::scratch::Scratch;

    fn inode(path: &Path) -> u64 {
        std::fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn the_second_time_nothing_is_written() {
        let scratch = Scratch::new();
        let programs = ensure_installed(scratch.path()).unwrap();
        let before = (inode(&programs.logger), inode(&programs.init));
        assert_eq!(ensure_installed(scratch.path()).unwrap(), programs);
        assert_eq!((inode(&programs.logger), inode(&programs.init)), before);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_differs_is_replaced_also_while_it_runs() {
        let scratch = Scratch::new();
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
        assert_eq!(std::fs::metadata(&programs.logger).unwrap().permissions().mode() & 0o7777, MODE);
    }

    #[test]
    fn only_what_the_dead_left_is_removed() {
        let scratch = Scratch::new();
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
    fn a_place_that_does_not_fit_is_named() {
        let scratch = Scratch::new();
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
    fn it_can_be_executed_while_other_threads_start_children() {
        let scratch = Scratch::new();
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
