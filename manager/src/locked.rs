//! A manager that is locked: nothing of it runs until somebody gives the unlock key by its unix socket, which only its
//! own user may open. Everything else that is asked there is refused with what to do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use warren_api::locked::LockedLayer;
use warren_api::middleware::MiddlewareLayer;
use warren_proto::v1::manager_lock_server::{ManagerLock, ManagerLockServer};
use warren_proto::{Problem, v1};
use warren_security::seal::KeyFiles;
use warren_security::{KeyFileError, LocalListener, LocalSocketError, UnlockKey};
use warren_types::UnlockKeyId;
use zeroize::Zeroizing;

/// Maximum message: a key.
const MAX_MESSAGE: usize = 4096;
/// How long the answer to whoever unlocked it may take.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

/// Why it cannot be unlocked.
#[derive(Debug, thiserror::Error)]
pub enum LockedManagerError {
    /// The socket cannot be opened.
    #[error(transparent)]
    Socket(#[from] LocalSocketError),
    /// The socket cannot be served any more.
    #[error("the socket ended: {0}")]
    Ended(String),
}

/// A manager that waits for its unlock key.
pub struct LockedManager {
    listener: LocalListener,
    dir: PathBuf,
    unlock_key: UnlockKeyId,
}

impl LockedManager {
    /// Listens at `socket` for the manager whose directory is `dir`, and which is locked with `unlock_key`.
    ///
    /// # Errors
    /// [`LockedManagerError::Socket`].
    pub fn bind(socket: &Path, dir: PathBuf, unlock_key: UnlockKeyId) -> Result<Self, LockedManagerError> {
        Ok(Self { listener: LocalListener::bind(socket, None)?, dir, unlock_key })
    }

    /// Waits for the key that opens the keys on the disk. The socket is free again then.
    ///
    /// # Errors
    /// [`LockedManagerError::Ended`].
    pub async fn wait_unlocked(self) -> Result<UnlockKey, LockedManagerError> {
        let (sender, mut keys) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let service = LockService { dir: self.dir, unlock_key: self.unlock_key, unlocked: sender };
        let server = Server::builder()
            .layer(MiddlewareLayer(LockedLayer))
            .add_service(ManagerLockServer::new(service).max_decoding_message_size(MAX_MESSAGE))
            .serve_with_incoming_shutdown(self.listener, async {
                // Also when it is dropped.
                let _ = stopped.await;
            });
        tokio::pin!(server);
        let key = tokio::select! {
            Some(key) = keys.recv() => key,
            ended = &mut server => {
                let why = ended.err().map_or_else(|| "without an error".to_owned(), |error| error.to_string());
                return Err(LockedManagerError::Ended(why));
            }
        };
        drop(stop);
        // Whoever unlocked it may keep the connection open.
        let _ = timeout(ANSWER_GRACE, server).await;
        Ok(key)
    }
}

struct LockService {
    dir: PathBuf,
    unlock_key: UnlockKeyId,
    unlocked: mpsc::Sender<UnlockKey>,
}

#[tonic::async_trait]
impl ManagerLock for LockService {
    async fn get_status(
        &self,
        _: Request<v1::LockStatusRequest>,
    ) -> Result<Response<v1::LockStatus>, Status> {
        Ok(Response::new(v1::LockStatus { unlock_key_id: self.unlock_key.to_string() }))
    }

    async fn unlock(
        &self,
        request: Request<v1::UnlockRequest>,
    ) -> Result<Response<v1::UnlockResponse>, Status> {
        let text = Zeroizing::new(request.into_inner().key);
        let wrong = |why: String| Status::from(Problem::new(Code::InvalidArgument, "WRONG_UNLOCK_KEY", why));
        let key = UnlockKey::parse(&text).map_err(|error| wrong(error.to_string()))?;
        let dir = self.dir.clone();
        let open = move || (KeyFiles::open(&dir, Some(&key)).map(drop), key);
        let opened = tokio::task::spawn_blocking(open).await;
        let (opened, key) =
            opened.map_err(|error| Status::from(Problem::new(Code::Internal, "UNLOCK", error)))?;
        match opened {
            Ok(()) => {
                // A second key changes nothing.
                let _ = self.unlocked.try_send(key);
                Ok(Response::new(v1::UnlockResponse {}))
            }
            Err(error @ KeyFileError::WrongUnlockKey { .. }) => {
                tracing::warn!(given = %key.id(), "somebody gave a wrong unlock key");
                Err(wrong(error.to_string()))
            }
            Err(error) => {
                tracing::error!(%error, "the manager cannot be unlocked");
                Err(Problem::new(Code::Internal, "UNLOCK", error).into())
            }
        }
    }
}
