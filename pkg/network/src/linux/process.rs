//! Runs the firewall programs, and blocking work on dedicated threads. Both with a deadline.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::Error;

/// Deadline of one program or one piece of kernel work. They take milliseconds, and seconds on a busy machine; only a
/// held lock or a broken kernel exceeds it.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// Input for which a program gets another second. The rules of 5,000 services take one second on an idle machine, and
/// more than ten on a busy one.
const INPUT_PER_SECOND: usize = 64 << 10;

/// Runs a program and returns its output. It is killed at the deadline, which is later for a long input.
pub(super) async fn run(program: &str, args: &[&str], input: &str) -> Result<String, Error> {
    let command = [&[program], args].concat().join(" ");
    let mut child = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| start_error(program, &command, &source))?;
    let mut stdin = child.stdin.take();
    let talk = async {
        if let Some(mut pipe) = stdin.take() {
            // A program that rejects its first line closes the pipe; its output explains more than the
            // broken pipe.
            let _ = pipe.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let deadline = DEADLINE + Duration::from_secs((input.len() / INPUT_PER_SECOND) as u64);
    let output = timeout(deadline, talk)
        .await
        .map_err(|_| Error::Deadline { what: format!("`{command}`"), after: deadline })?
        .map_err(|source| start_error(program, &command, &source))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let detail = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::ProgramFailed { command, detail })
}

fn start_error(program: &str, command: &str, source: &io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound => {
            let package = if program == "nft" { "nftables" } else { "iptables" };
            Error::ProgramMissing { program: program.to_owned(), package }
        }
        _ => Error::ProgramFailed { command: command.to_owned(), detail: source.to_string() },
    }
}

/// Runs blocking work on a dedicated thread. The work may enter other network namespaces: the thread is
/// never reused. It keeps running when the caller is dropped.
pub(super) async fn run_on_thread<T, W>(what: &str, work: W) -> Result<T, Error>
where
    T: Send + 'static,
    W: FnOnce() -> Result<T, Error> + Send + 'static,
{
    let (send, receive) = oneshot::channel();
    let interrupted = || Error::Interrupted { what: what.to_owned() };
    std::thread::Builder::new()
        .name("warren-net".to_owned())
        .spawn(move || send.send(work()))
        .map_err(|_| interrupted())?;
    match timeout(DEADLINE, receive).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(interrupted()),
        Err(_) => Err(Error::Deadline { what: what.to_owned(), after: DEADLINE }),
    }
}
