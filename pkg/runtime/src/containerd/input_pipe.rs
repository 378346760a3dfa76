//! The named pipe of a container's standard input.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::error::Error;
use crate::exec::ExecInput;

/// How long a started process may take to open its end of the pipe.
const READER_TIMEOUT: Duration = Duration::from_secs(5);
const READER_POLL: Duration = Duration::from_millis(10);
/// Owner only.
const PIPE_MODE: u32 = 0o600;

/// Creates the pipe of a container's input unless it exists, for this user of the container.
pub(super) fn ensure(path: &Path, uid: u32) -> Result<()> {
    let not_created = |error: io::Error| failed("create", path, &error);
    match mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(error) => return Err(not_created(error.into())),
    }
    if !fs::symlink_metadata(path).map_err(not_created)?.file_type().is_fifo() {
        return Err(not_created(io::Error::other("another file has its name")));
    }
    // It was created with the umask of this process.
    fs::set_permissions(path, Permissions::from_mode(PIPE_MODE)).map_err(not_created)?;
    chown(path, Some(uid), None).map_err(not_created)
}

/// Opens the pipe once it has a reader, which is right after the start: data that nobody can read would be lost.
pub(super) async fn open(path: &Path) -> Result<ExecInput> {
    let deadline = Instant::now() + READER_TIMEOUT;
    loop {
        let error = match pipe::OpenOptions::new().open_sender(path) {
            Ok(input) => return Ok(Box::new(input)),
            Err(error) => error,
        };
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENXIO) if Instant::now() < deadline => sleep(READER_POLL).await,
            Some(Errno::ENXIO) => {
                return Err(Error::invalid_field("stdin", "its program has closed its standard input"));
            }
            Some(Errno::ENOENT) => {
                return Err(Error::invalid_field("stdin", "its standard input has ended"));
            }
            _ => return Err(failed("open", path, &error)),
        }
    }
}

/// Removes the pipe; whoever has it open keeps it.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

fn failed(verb: &str, path: &Path, error: &io::Error) -> Error {
    Error::Failed {
        action: format!("{verb} the pipe of a standard input, {}", path.display()),
        reason: error.to_string(),
    }
}
