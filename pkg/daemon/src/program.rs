//! The program of a node: its digest, and its replacement on the disk.
//!
//! A new program is written beside the running one, checked, run once to see that it starts on this machine, and
//! renamed over it. If anything fails, the program on the disk stays as it is. Start reading at [`ProgramFile`].

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::sync::watch;

/// The largest program.
pub const MAX_PROGRAM_BYTES: u64 = 512 << 20;

/// The link to the file that this process executes.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// How the kernel marks a link to a file that was replaced or deleted.
const DELETED: &[u8] = b" (deleted)";
/// End of the name of a new program that is not complete.
const NEW: &str = ".new";
/// End of the name of the program before the last upgrade.
const OLD: &str = ".old";
/// Mode of a program.
const PROGRAM_MODE: u32 = 0o755;
/// Mode of a program that is not checked yet.
const UNCHECKED_MODE: u32 = 0o600;
/// How long a program may take to print its version.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// What is read of the printed version.
const MAX_VERSION_BYTES: usize = 256;
const READ_BYTES: usize = 64 << 10;
const DIGEST_PREFIX: &str = "sha256:";

/// SHA-256 of a program; as text `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramDigest([u8; 32]);

impl ProgramDigest {
    /// The digest of everything that can be read.
    ///
    /// # Errors
    /// Reading failed.
    pub fn of(mut program: impl Read) -> io::Result<Self> {
        let (mut hasher, mut part) = (Sha256::new(), vec![0; READ_BYTES]);
        loop {
            match program.read(&mut part) {
                Ok(0) => return Ok(Self(hasher.finalize().into())),
                Ok(read) => hasher.update(&part[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl fmt::Display for ProgramDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(DIGEST_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for ProgramDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not a digest like sha256:0123... with 64 digits");
        let hex = text.strip_prefix(DIGEST_PREFIX).ok_or_else(invalid)?;
        if hex.len() != 64 || !hex.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(invalid());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            let digits = str::from_utf8(digits).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| invalid())?;
        }
        Ok(Self(bytes))
    }
}

/// The digest of the program that this process executes; `None` until it is computed.
static RUNNING: LazyLock<watch::Sender<Option<ProgramDigest>>> = LazyLock::new(watch::Sender::default);

/// Computes the digest of the program that this process executes, in the background.
pub fn start_digest() {
    drop(tokio::task::spawn_blocking(|| match File::open(OWN_PROGRAM).and_then(ProgramDigest::of) {
        Ok(digest) => {
            RUNNING.send_replace(Some(digest));
        }
        Err(error) => tracing::warn!(%error, "cannot read the running program; its digest is unknown"),
    }));
}

/// The digest of the program that this process executes, also if its file was replaced since; `None` until
/// [`start_digest`] has computed it.
pub fn running_digest() -> watch::Receiver<Option<ProgramDigest>> {
    RUNNING.subscribe()
}

/// The program was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The file at the path of the running program is another one.
    #[error(
        "the file of the running program was replaced or deleted ({}); restart the node, then try again",
        path.display()
    )]
    Replaced {
        /// Where the running program was.
        path: PathBuf,
    },
    /// The running program cannot be found.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file cannot be written, renamed or removed.
    #[error("cannot write {}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The size is not that of a program.
    #[error("a program of {bytes} bytes is not accepted, only one of 1 to {MAX_PROGRAM_BYTES}")]
    Size {
        /// The announced size.
        bytes: u64,
    },
    /// Another number of bytes than announced arrived.
    #[error("{received} bytes of the new program arrived, not {announced}")]
    Incomplete {
        /// Number of bytes that arrived.
        received: u64,
        /// The announced number.
        announced: u64,
    },
    /// The bytes are not those that were announced.
    #[error("the new program arrived as {found}, not {announced}")]
    OtherDigest {
        /// Digest of what arrived.
        found: ProgramDigest,
        /// The announced digest.
        announced: ProgramDigest,
    },
    /// A program does not print its version.
    #[error("`{} --version` failed on this machine: {why}", path.display())]
    NotStarted {
        /// The program.
        path: PathBuf,
        /// What happened.
        why: String,
    },
    /// The new program is another one.
    #[error("the new program is {found}, and the node runs {expected}")]
    OtherProgram {
        /// Name of the new program.
        found: String,
        /// Name of the running program.
        expected: String,
    },
}

/// The file of the program that a node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramFile {
    path: PathBuf,
}

impl ProgramFile {
    /// That of this process.
    ///
    /// # Errors
    /// It was replaced or deleted, or cannot be found.
    pub fn running() -> Result<Self, ProgramError> {
        let unreadable = |path: &Path| {
            let path = path.to_owned();
            move |source| ProgramError::Unreadable { path, source }
        };
        let own = Path::new(OWN_PROGRAM);
        let path = fs::read_link(own).map_err(unreadable(own))?;
        if path.as_os_str().as_bytes().ends_with(DELETED) {
            return Err(ProgramError::Replaced { path });
        }
        let found = fs::symlink_metadata(&path).map_err(unreadable(&path))?;
        let executed = fs::metadata(own).map_err(unreadable(own))?;
        // In another mount namespace, another file may have this path.
        if !found.is_file() || (found.dev(), found.ino()) != (executed.dev(), executed.ino()) {
            return Err(ProgramError::Replaced { path });
        }
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts to write a new program of `size` bytes beside it. What an earlier attempt left there is removed.
    ///
    /// # Errors
    /// The size is not that of a program, or the directory cannot be written.
    pub fn begin(self, size: u64) -> Result<NewProgram, ProgramError> {
        if !(1..=MAX_PROGRAM_BYTES).contains(&size) {
            return Err(ProgramError::Size { bytes: size });
        }
        let path = with_ending(&self.path, NEW);
        remove_if_present(&path)?;
        let created = OpenOptions::new().create_new(true).write(true).mode(UNCHECKED_MODE).open(&path);
        let file = created.map_err(|source| ProgramError::Unwritable { path: path.clone(), source })?;
        Ok(NewProgram {
            replaced: self.path,
            path,
            file: Some(file),
            hasher: Sha256::new(),
            size,
            received: 0,
        })
    }
}

/// A new program that is not in place yet. Its file is removed with it.
#[derive(Debug)]
pub struct NewProgram {
    replaced: PathBuf,
    path: PathBuf,
    /// `None` once it is complete: a program cannot be executed while it is open for writing.
    file: Option<File>,
    hasher: Sha256,
    size: u64,
    received: u64,
}

impl Drop for NewProgram {
    fn drop(&mut self) {
        // After it was renamed there is none.
        let _ = fs::remove_file(&self.path);
    }
}

impl NewProgram {
    /// Appends bytes, at most as many as were announced.
    ///
    /// # Errors
    /// There are more, or they cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ProgramError> {
        self.received += bytes.len() as u64;
        if self.received > self.size {
            return Err(self.incomplete());
        }
        self.hasher.update(bytes);
        let written = self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes));
        written.map_err(|source| self.unwritable(source))
    }

    /// Checks the program and renames it over the one that the node runs, whose file is kept under the returned name.
    /// Nothing is executed before the digest was compared.
    ///
    /// # Errors
    /// The program is not `announced`, does not start here, is another program, or cannot be put in place.
    pub fn install(mut self, announced: ProgramDigest) -> Result<PathBuf, ProgramError> {
        if self.received != self.size {
            return Err(self.incomplete());
        }
        let found = ProgramDigest(std::mem::take(&mut self.hasher).finalize().into());
        if found != announced {
            return Err(ProgramError::OtherDigest { found, announced });
        }
        if let Some(file) = self.file.take() {
            let mode = Permissions::from_mode(PROGRAM_MODE);
            let stored = file.set_permissions(mode).and_then(|()| file.sync_all());
            stored.map_err(|source| self.unwritable(source))?;
        }
        let (found, expected) = (program_name(&self.path)?, program_name(&self.replaced)?);
        if found != expected {
            return Err(ProgramError::OtherProgram { found, expected });
        }
        let previous = with_ending(&self.replaced, OLD);
        remove_if_present(&previous)?;
        let unwritable = |path: &Path| {
            let path = path.to_owned();
            move |source| ProgramError::Unwritable { path, source }
        };
        fs::hard_link(&self.replaced, &previous).map_err(unwritable(&previous))?;
        fs::rename(&self.path, &self.replaced).map_err(unwritable(&self.replaced))?;
        let directory = self.replaced.parent().unwrap_or(Path::new("/"));
        // It is in place; only a power failure could bring the earlier one back.
        if let Err(error) = File::open(directory).and_then(|it| it.sync_all()) {
            tracing::warn!(directory = %directory.display(), %error, "cannot sync the directory of the program");
        }
        Ok(previous)
    }

    fn incomplete(&self) -> ProgramError {
        ProgramError::Incomplete { received: self.received, announced: self.size }
    }

    fn unwritable(&self, source: io::Error) -> ProgramError {
        ProgramError::Unwritable { path: self.path.clone(), source }
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(ending);
    path.into()
}

fn remove_if_present(path: &Path) -> Result<(), ProgramError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(ProgramError::Unwritable { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// The name of a program, which it prints before its version.
fn program_name(path: &Path) -> Result<String, ProgramError> {
    let failed = |why: String| ProgramError::NotStarted { path: path.to_owned(), why };
    let deadline = Instant::now() + START_TIMEOUT;
    let mut child = loop {
        let mut command = Command::new(path);
        command.arg("--version").env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => break child,
            // A process that another thread is starting still has the file open.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                thread::sleep(POLL_INTERVAL);
            }
            Err(error) => return Err(failed(error.to_string())),
        }
    };
    let status = loop {
        match child.try_wait().map_err(|error| failed(error.to_string()))? {
            Some(status) => break status,
            None if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
            None => {
                // It may end by itself at this moment.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("it did not end within {} s", START_TIMEOUT.as_secs())));
            }
        }
    };
    if !status.success() {
        return Err(failed(format!("it ended with {status}")));
    }
    let mut text = [0; MAX_VERSION_BYTES];
    let read = child.stdout.take().map_or(Ok(0), |mut output| output.read(&mut text));
    let read = read.map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&text[..read]);
    let name = text.split_whitespace().next().map(str::to_owned);
    name.ok_or_else(|| failed("it printed nothing".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD_PROGRAM: &str = "#!/bin/sh\necho warren 1\n";
    const NEW_PROGRAM: &str = "#!/bin/sh\necho warren 2\n";

    fn digest(text: &str) -> ProgramDigest {
        ProgramDigest::of(text.as_bytes()).unwrap()
    }

    /// A directory with the program of a node.
    fn machine() -> (tempfile::TempDir, ProgramFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("warren");
        fs::write(&path, OLD_PROGRAM).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(PROGRAM_MODE)).unwrap();
        (dir, ProgramFile { path })
    }

    fn replace(
        program: &ProgramFile,
        text: &str,
        size: usize,
        digest: ProgramDigest,
    ) -> Result<PathBuf, ProgramError> {
        let mut new = program.clone().begin(size as u64)?;
        for part in text.as_bytes().chunks(7) {
            new.write(part)?;
        }
        new.install(digest)
    }

    fn files(dir: &tempfile::TempDir) -> Vec<(String, String)> {
        let read = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<_> = read
            .map(|entry| {
                let text = fs::read_to_string(entry.path()).unwrap();
                (entry.file_name().into_string().unwrap(), text)
            })
            .collect();
        files.sort();
        files
    }

    #[test]
    fn program_is_replaced_and_the_earlier_one_kept() {
        let (dir, program) = machine();
        fs::write(dir.path().join("warren.new"), "left by an earlier attempt").unwrap();
        for earlier in [OLD_PROGRAM, NEW_PROGRAM] {
            let previous = replace(&program, NEW_PROGRAM, NEW_PROGRAM.len(), digest(NEW_PROGRAM)).unwrap();
            assert_eq!(previous, dir.path().join("warren.old"));
            let mode = fs::metadata(program.path()).unwrap().mode();
            assert_eq!(mode & 0o7777, PROGRAM_MODE);
            let expected = [("warren", NEW_PROGRAM), ("warren.old", earlier)];
            assert_eq!(files(&dir), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        }
    }

    #[test]
    fn whatever_fails_changes_nothing() {
        let (dir, program) = machine();
        let length = NEW_PROGRAM.len();
        let fails = |text: &str, size, digest, expected: &str| {
            let error = crate::error_chain(&replace(&program, text, size, digest).unwrap_err());
            assert!(error.contains(expected), "{error}");
            assert_eq!(files(&dir), [("warren".to_owned(), OLD_PROGRAM.to_owned())], "{error}");
        };
        fails(NEW_PROGRAM, length, digest("other"), "arrived as sha256:");
        fails(&NEW_PROGRAM[..9], length, digest(NEW_PROGRAM), "9 bytes of the new program arrived, not 24");
        fails(NEW_PROGRAM, 9, digest(NEW_PROGRAM), "bytes of the new program arrived, not 9");
        for (text, expected) in [
            ("not a program\n", "--version` failed on this machine: "),
            ("#!/bin/sh\nexit 1\n", "it ended with exit status: 1"),
            ("#!/bin/sh\n", "it printed nothing"),
            (
                "#!/bin/sh\necho warren-worker 2\n",
                "the new program is warren-worker, and the node runs warren",
            ),
        ] {
            fails(text, text.len(), digest(text), expected);
        }
        for size in [0, MAX_PROGRAM_BYTES + 1] {
            assert!(matches!(program.clone().begin(size), Err(ProgramError::Size { .. })), "{size}");
        }
    }

    #[test]
    fn program_of_this_process_is_found() {
        let program = ProgramFile::running().unwrap();
        assert_eq!(program.path(), std::env::current_exe().unwrap());
    }

    #[test]
    fn digest_is_read_back() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest("").to_string(), empty);
        assert_eq!(empty.parse(), Ok(digest("")));
        for wrong in ["", "sha256:", "sha256:E3", &empty[7..], &empty.replace('e', "E"), &format!("{empty}0")]
        {
            wrong.parse::<ProgramDigest>().unwrap_err();
        }
    }
}
