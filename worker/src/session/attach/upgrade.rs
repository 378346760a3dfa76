//! Replaces the program of this node by one that a manager sends, and has the node restart with it.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, MutexGuard, mpsc};
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::Channel;
use warren_daemon::error_chain;
use warren_daemon::program::{ProgramDigest, ProgramError, ProgramFile, running_digest};
use warren_daemon::restart::request_restart;
use warren_proto::v1;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::stream_frame::Frame;

use super::{AttachedStream, QUEUE, StreamError};

/// A manager that sends nothing for this long is considered lost.
const IDLE_DEADLINE: Duration = Duration::from_secs(60);
/// Time for the answer to reach the client, which may be connected to the manager of this process.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// Held while the program of this process is replaced, also by what is left of an ended session.
static IN_PROGRESS: Mutex<()> = Mutex::const_new(());

/// The program was not replaced.
#[derive(Debug, thiserror::Error)]
enum UpgradeError {
    #[error("another upgrade of this node is in progress; try again when it has ended")]
    InProgress,
    #[error("this node runs that program already")]
    Running,
    #[error("{0}")]
    InvalidDigest(String),
    #[error("no data from the manager for {IDLE_DEADLINE:?}")]
    Idle,
    #[error("the new program did not arrive completely: {0}")]
    NotReceived(String),
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// A part of the program, or its end. A channel that closes without the end means that the rest does not arrive.
enum ProgramPart {
    Data(Bytes),
    End,
}

/// Receives the program, puts it in place and requests the restart.
pub(super) async fn upgrade(
    client: SessionsClient<Channel>,
    stream_id: &str,
    request: &v1::UpgradeProgram,
) -> Result<(), StreamError> {
    let mut attachment = AttachedStream::open(client, stream_id, QUEUE).await?;
    let result = match replace(&mut attachment.inbound, request).await {
        Ok(previous) => {
            tracing::info!(digest = request.digest, "the program of this node is replaced");
            attachment.out.send(Frame::PreviousProgram(previous.display().to_string())).await?;
            Ok(())
        }
        Err(error) => {
            let reason = error_chain(&error);
            tracing::warn!(stream_id, reason, "the program of this node was not replaced");
            Err(reason)
        }
    };
    attachment.finish(result).await
}

async fn replace(
    inbound: &mut Streaming<v1::StreamFrame>,
    request: &v1::UpgradeProgram,
) -> Result<PathBuf, UpgradeError> {
    let lock = IN_PROGRESS.try_lock().map_err(|_| UpgradeError::InProgress)?;
    let digest = request.digest.parse::<ProgramDigest>().map_err(UpgradeError::InvalidDigest)?;
    if *running_digest().borrow() == Some(digest) {
        // The earlier program stays what it is.
        return Err(UpgradeError::Running);
    }
    let (parts, arriving) = mpsc::channel(QUEUE);
    let size = request.size_bytes;
    let installing = tokio::task::spawn_blocking(move || install(arriving, size, digest, lock));
    let received = receive(inbound, parts).await;
    let installed = installing.await.expect("replacing a program does not panic");
    // Without the rest, its own error says less.
    received.and(installed)
}

/// Passes the program on until its end, or until nothing more is taken.
async fn receive(
    inbound: &mut Streaming<v1::StreamFrame>,
    parts: mpsc::Sender<ProgramPart>,
) -> Result<(), UpgradeError> {
    let broken = |why: &str| UpgradeError::NotReceived(why.to_owned());
    loop {
        let frame = timeout(IDLE_DEADLINE, inbound.message()).await.map_err(|_| UpgradeError::Idle)?;
        let frame = frame.map_err(|status| broken(status.message()))?;
        let part = match frame.and_then(|frame| frame.frame) {
            Some(Frame::Data(bytes)) => ProgramPart::Data(bytes),
            Some(Frame::End(v1::EndOfData {})) => ProgramPart::End,
            Some(_) => return Err(broken("unexpected frame")),
            None => return Err(broken("the manager closed the stream")),
        };
        let is_end = matches!(part, ProgramPart::End);
        if parts.send(part).await.is_err() || is_end {
            return Ok(());
        }
    }
}

/// Writes the program beside that of this process, checks it, puts it in place and requests the restart. Blocks. The
/// end of the session does not interrupt it.
fn install(
    mut parts: mpsc::Receiver<ProgramPart>,
    size: u64,
    digest: ProgramDigest,
    _lock: MutexGuard<'static, ()>,
) -> Result<PathBuf, UpgradeError> {
    let program = ProgramFile::running()?;
    let path = program.path().to_owned();
    let mut new = program.begin(size)?;
    loop {
        match parts.blocking_recv() {
            Some(ProgramPart::Data(bytes)) => new.write(&bytes)?,
            Some(ProgramPart::End) => break,
            None => return Err(UpgradeError::NotReceived("the stream ended".to_owned())),
        }
    }
    let previous = new.install(digest)?;
    Handle::current().spawn(async move {
        tokio::time::sleep(RESTART_DELAY).await;
        request_restart(path);
    });
    Ok(previous)
}
