//! The agent's end of the socket. Blocking.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Pid;
use zeroize::Zeroizing;

use crate::protocol::{self, GET};
use crate::{Error, WireGuardSettings, WireGuardState};

/// Time limit of one answer. They take milliseconds.
const DEADLINE: Duration = Duration::from_secs(5);

/// A connection to the process.
pub struct WireGuardControl {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl WireGuardControl {
    /// Connects to the process that has this socket.
    ///
    /// # Errors
    /// [`Error::Control`]: there is none.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let open = || {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.set_write_timeout(Some(DEADLINE))?;
            Ok(stream)
        };
        let stream = open().map_err(|source| failed("connect to", path, source))?;
        Ok(Self { path: path.to_owned(), stream: BufReader::new(stream) })
    }

    /// What the device is.
    ///
    /// # Errors
    /// [`Error::Control`], [`Error::Answer`].
    pub fn state(&mut self) -> Result<WireGuardState, Error> {
        protocol::parse_state(&self.ask(GET)?)
    }

    /// Whether the process must be started again for these settings.
    ///
    /// # Errors
    /// [`Error::Control`], [`Error::Answer`].
    pub fn must_restart(&mut self, wanted: &WireGuardSettings) -> Result<bool, Error> {
        Ok(protocol::must_restart(&self.state()?, wanted))
    }

    /// Makes the device as wanted. Returns a sentence for each change.
    ///
    /// # Errors
    /// [`Error::Control`], [`Error::Answer`], [`Error::Refused`].
    pub fn ensure(&mut self, wanted: &WireGuardSettings) -> Result<Vec<String>, Error> {
        let Some(change) = protocol::change(&self.state()?, wanted) else { return Ok(Vec::new()) };
        let answer = self.ask(&change.request)?;
        protocol::parse_outcome(&answer, wanted.port)?;
        Ok(change.descriptions)
    }

    /// Ends the process, and its device with it. Returns when it has ended.
    ///
    /// # Errors
    /// [`Error::Control`].
    pub fn stop(mut self) -> Result<(), Error> {
        let stop = || {
            let peer = getsockopt(self.stream.get_ref(), sockopt::PeerCredentials)?;
            kill(Pid::from_raw(peer.pid()), Signal::SIGTERM)
        };
        match stop() {
            // Its device was removed, and it has ended.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(failed("stop", &self.path, errno.into())),
        }
        // The kernel closes the connection when the process ends.
        match io::copy(&mut self.stream, &mut io::sink()) {
            Err(source) if source.kind() != io::ErrorKind::ConnectionReset => {
                Err(failed("stop", &self.path, source))
            }
            _ => Ok(()),
        }
    }

    /// Sends a request and reads its answer, up to the empty line.
    fn ask(&mut self, request: &str) -> Result<Zeroizing<String>, Error> {
        let written = self.stream.get_mut().write_all(request.as_bytes());
        written.map_err(|source| failed("send to", &self.path, source))?;
        let mut answer = Zeroizing::new(String::new());
        loop {
            let before = answer.len();
            let read = self.stream.read_line(&mut answer);
            match read.map_err(|source| failed("read the answer of", &self.path, source))? {
                0 => {
                    let ended = io::ErrorKind::UnexpectedEof.into();
                    return Err(failed("read the answer of", &self.path, ended));
                }
                _ if answer[before..] == *"\n" => return Ok(answer),
                _ => {}
            }
        }
    }
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Control { operation, path: path.to_owned(), source }
}
