//! The process: how it is started, and what it does.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use gotatun::device::DeviceBuilder;
use gotatun::device::uapi::{UapiClient, UapiServer};
use nix::net::if_::if_nametoindex;
use nix::sys::stat::{Mode, umask};
use tokio::runtime::Builder;

use crate::Error;

/// First argument of the process; the name of its device and the path of its socket follow.
pub const COMMAND: &str = "wireguard-process";

/// What the process prints once it can be configured.
const READY: &str = "ready";

/// Interval at which the process looks for its device.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Limit on what a process says that could not start.
const MAX_REASON: u64 = 4096;

/// A program that passes its arguments to [`run_command`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireGuardProgram(pub PathBuf);

impl WireGuardProgram {
    /// The program of this process.
    pub fn own() -> Self {
        Self("/proc/self/exe".into())
    }
}

/// Runs the process if these are its arguments, without that of the program itself. Errors are printed for [`start`].
pub fn run_command(arguments: &[String]) -> Option<ExitCode> {
    let [command, device, socket] = arguments else { return None };
    (command == COMMAND).then(|| match run(device, Path::new(socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Start { reason }) => {
            println!("{reason}");
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    })
}

/// Starts the process in the network namespace of the calling thread, and waits until it can be configured. It outlives
/// this process.
///
/// # Errors
/// [`Error::Start`].
pub fn start(program: &WireGuardProgram, device: &str, socket: &Path) -> Result<(), Error> {
    let mut command = Command::new(&program.0);
    command.arg(COMMAND).arg(device).arg(socket).current_dir("/");
    // The agent's environment is not passed on, least of all systemd's notification socket.
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let failed = |error: io::Error| Error::Start { reason: error.to_string() };
    let mut child = command.spawn().map_err(failed)?;
    let mut said = String::new();
    if let Some(output) = child.stdout.take() {
        // The pipe is closed at the end of the process, or with the word.
        BufReader::new(output.take(MAX_REASON)).read_line(&mut said).map_err(failed)?;
    }
    let said = said.trim();
    if said != READY {
        let status = child.wait().map_err(failed)?;
        let reason = if said.is_empty() { format!("it ended with {status}") } else { said.to_owned() };
        return Err(Error::Start { reason });
    }
    reap(child);
    Ok(())
}

/// Takes note of the end of the process, so that no zombie is left.
fn reap(mut child: Child) {
    let wait = move || match child.wait() {
        Ok(status) => tracing::info!(%status, "the WireGuard process ended"),
        Err(error) => tracing::debug!(%error, "cannot wait for the WireGuard process"),
    };
    if let Err(error) = thread::Builder::new().name("wireguard-end".to_owned()).spawn(wait) {
        tracing::debug!(%error, "cannot wait for the WireGuard process");
    }
}

/// Creates the device and the socket, says so on standard output, and moves packets until the device fails.
fn run(name: &str, socket: &Path) -> Result<(), Error> {
    // No hang-up or interrupt of a terminal reaches it. The leader of a session already has its own.
    let _ = nix::unistd::setsid();
    // Who can connect can read the key.
    umask(Mode::from_bits_truncate(0o177));
    let failed = |error: io::Error| Error::Start { reason: error.to_string() };
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    let outcome = runtime.block_on(async {
        let start = |reason: String| Error::Start { reason };
        let (client, server) = UapiServer::new();
        // Fails while another process has the device: its socket must not be taken then.
        let builder = DeviceBuilder::new().with_default_udp().create_tun(name);
        let builder = builder.map_err(|error| start(chain(&error)))?;
        let mut device = builder.with_uapi(server).build().await.map_err(|error| start(chain(&error)))?;
        let listener = bind(socket).map_err(failed)?;
        serve(listener, client).map_err(failed)?;
        let mut output = io::stdout();
        // If nobody reads it, nobody configures the device, until an agent does.
        let _ = writeln!(output, "{READY}").and_then(|()| output.flush());
        tokio::select! {
            () = device.wait() => {}
            () = removal(name) => {}
        }
        Ok(())
    });
    if outcome.is_ok() {
        // If that fails, the next agent finds a socket without a process, which the next process removes.
        let _ = std::fs::remove_file(socket);
    }
    // The tasks of the device are not waited for: it is gone.
    runtime.shutdown_background();
    outcome
}

/// Returns when the device is not there any more, or is another one of the same name. The device itself does not say.
async fn removal(name: &str) {
    let Ok(own) = if_nametoindex(name) else { return };
    let mut checks = tokio::time::interval(CHECK_INTERVAL);
    while if_nametoindex(name) == Ok(own) {
        checks.tick().await;
    }
}

fn bind(socket: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(socket)
}

/// Answers every connection on a thread of its own.
fn serve(listener: UnixListener, client: UapiClient) -> io::Result<()> {
    let accept = move || {
        for stream in listener.incoming().flatten() {
            client.clone().wrap_read_write(stream);
        }
    };
    thread::Builder::new().name("control".to_owned()).spawn(accept).map(drop)
}

/// The error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
