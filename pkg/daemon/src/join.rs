//! The part of joining a cluster that managers and workers share: the first connection, on which the
//! manager proves with the token's digest that it belongs to the cluster before anything else is sent,
//! and errors for rejected requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use warren_security::{JoinConnectError, JoinToken, Roots, connect_to_join};
use warren_types::{NodeRole, Violations};

use crate::{CommandError, ExitKind, error_chain};

/// What failed, for error messages.
pub const NOT_JOINED: &str = "cannot join the cluster";
/// Time limit of the TCP connection, and of the TLS handshake after it.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Time limit of the answer. The manager stores the membership durably first.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Parses a join token for `role`.
///
/// # Errors
/// The text is not a token for this role.
pub fn parse_token(text: &str, role: NodeRole) -> Result<JoinToken, CommandError> {
    let hint = || format!("get one with `warren token create --role {}`", role.as_str());
    JoinToken::parse(text).map_err(|error| CommandError::new(ExitKind::Usage, NOT_JOINED, error, hint()))
}

/// Pauses before a handshake is repeated that the manager ended without an alert.
const HANDSHAKE_PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(500)];

/// Connects to the manager at `address` without a certificate, after it has proved to belong to the
/// token's cluster. Returns the connection and the roots to trust from now on.
///
/// # Errors
/// The manager cannot be reached, or is not of this cluster.
pub async fn connect(address: &str, token: &JoinToken) -> Result<(Channel, Roots), CommandError> {
    let (started, mut pauses) = (Instant::now(), HANDSHAKE_PAUSES.into_iter());
    let (secure, roots) = loop {
        let error = match connect_to_join(dial(address).await?, token.authority(), CONNECT_DEADLINE).await {
            Ok(connected) => break connected,
            Err(error) => error,
        };
        let was_closed = matches!(&error, JoinConnectError::Connect(error) if error.was_closed());
        let may_repeat = was_closed && started.elapsed() < CONNECT_DEADLINE / 2;
        let pause = pauses.next().filter(|_| may_repeat).ok_or_else(|| connection_refused(&error))?;
        sleep(pause).await;
    };
    let channel = channel_over(secure).await.map_err(|error| unreachable(address, error_chain(&error)))?;
    Ok((channel, roots))
}

async fn dial(address: &str) -> Result<TcpStream, CommandError> {
    let late = || unreachable(address, format!("no answer within {CONNECT_DEADLINE:?}"));
    let stream = timeout(CONNECT_DEADLINE, TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| late())?.map_err(|error| unreachable(address, error.to_string()))?;
    // Without this, a request waits up to 40 ms for the acknowledgement of its first part.
    stream.set_nodelay(true).map_err(|error| unreachable(address, error.to_string()))?;
    Ok(stream)
}

/// Waits at most [`ANSWER_DEADLINE`] for the answer to a join request.
///
/// # Errors
/// No answer in time.
pub async fn await_answer<T>(address: &str, call: impl Future<Output = T>) -> Result<T, CommandError> {
    let late = |_| unreachable(address, format!("no answer within {ANSWER_DEADLINE:?}"));
    timeout(ANSWER_DEADLINE, call).await.map_err(late)
}

/// A channel over exactly this connection: after a connection loss, calls fail instead of dialling again.
///
/// # Errors
/// The peer does not speak HTTP/2.
pub async fn channel_over<S>(stream: S) -> Result<Channel, tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = Arc::new(Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_| {
        let stream = Arc::clone(&stream);
        async move {
            let gone = || io::Error::new(io::ErrorKind::NotConnected, "the connection was lost");
            stream.lock().await.take().map(TokioIo::new).ok_or_else(gone)
        }
    });
    // The address is never dialled. https would be refused because TLS is already in place.
    Endpoint::from_static("http://manager").connect_with_connector(connector).await
}

fn unreachable(address: &str, why: String) -> CommandError {
    let why = format!("cannot reach {address}: {why}");
    CommandError::new(ExitKind::Unreachable, NOT_JOINED, why, "check that the manager runs, and its address")
}

fn connection_refused(error: &JoinConnectError) -> CommandError {
    let exit = match error {
        JoinConnectError::Connect(_) => ExitKind::Unreachable,
        JoinConnectError::TlsConfig(_) => ExitKind::Failed,
        JoinConnectError::AnotherCluster { .. }
        | JoinConnectError::Expired(_)
        | JoinConnectError::NotAManager(_) => ExitKind::Denied,
    };
    let hint = match error {
        JoinConnectError::Connect(_) => "check that a manager runs there, then try again",
        _ => "no secret was sent to the other side",
    };
    CommandError::new(exit, NOT_JOINED, error_chain(error), hint)
}

/// A manager's rejection of a join or leave request.
#[derive(Debug, Clone)]
pub struct JoinRefusal {
    /// gRPC status code.
    pub code: Code,
    /// Stable reason code, in capitals.
    pub reason: String,
    /// Human readable message.
    pub message: String,
    /// Invalid fields.
    pub violations: Violations,
}

impl JoinRefusal {
    /// The error with its exit code, for a machine that asked to become a `role`.
    pub fn into_error(self, role: NodeRole) -> CommandError {
        let Self { code, reason, message, violations } = self;
        let new_token = format!("create a new token with `warren token create --role {}`", role.as_str());
        let (exit, hint) = match code {
            Code::InvalidArgument => (ExitKind::Usage, "correct it and try again"),
            // The message of the manager says what to do.
            Code::AlreadyExists => (ExitKind::Conflict, ""),
            Code::PermissionDenied if reason.starts_with("TOKEN_") || reason == "ANOTHER_KEY" => {
                (ExitKind::Denied, "")
            }
            Code::NotFound => (ExitKind::NotFound, "list the nodes with `warren node ls`"),
            Code::Unauthenticated | Code::PermissionDenied | Code::FailedPrecondition => {
                (ExitKind::Denied, new_token.as_str())
            }
            // Managers do not answer with `Unknown`; tonic uses it for broken connections.
            Code::Unavailable | Code::Unknown => {
                (ExitKind::Unreachable, "try again in a moment; a repeated join is safe")
            }
            Code::DeadlineExceeded => (ExitKind::TimedOut, "try again in a moment"),
            _ => {
                let hint = "read what the manager at that address wrote to standard error, on its machine \
                            (`journalctl --unit UNIT` where systemd runs it)";
                (ExitKind::Failed, hint)
            }
        };
        CommandError { fields: violations, ..CommandError::new(exit, NOT_JOINED, message, hint) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_token_error_names_command() {
        let failure = parse_token("x", NodeRole::Manager).unwrap_err();
        assert_eq!(failure.kind, ExitKind::Usage);
        assert_eq!(failure.hint, "get one with `warren token create --role manager`");
    }

    #[test]
    fn refusals_map_to_exit_codes() {
        let refused = |code, reason: &str| {
            let (reason, message) = (reason.to_owned(), "no".to_owned());
            let refused = JoinRefusal { code, reason, message, violations: Violations::default() };
            refused.into_error(NodeRole::Manager)
        };
        for (code, reason, exit) in [
            (Code::InvalidArgument, "X", ExitKind::Usage),
            (Code::AlreadyExists, "MANAGER_EXISTS", ExitKind::Conflict),
            (Code::PermissionDenied, "TOKEN_EXHAUSTED", ExitKind::Denied),
            (Code::FailedPrecondition, "X", ExitKind::Denied),
            (Code::Unknown, "", ExitKind::Unreachable),
            (Code::Unavailable, "NO_LEADER", ExitKind::Unreachable),
            (Code::DeadlineExceeded, "X", ExitKind::TimedOut),
            (Code::Internal, "X", ExitKind::Failed),
        ] {
            assert_eq!(refused(code, reason).kind, exit, "{code:?}");
        }
        for reason in ["TOKEN_EXHAUSTED", "ANOTHER_KEY"] {
            assert_eq!(refused(Code::PermissionDenied, reason).hint, "");
        }
        let hint = refused(Code::PermissionDenied, "CLUSTER_MISMATCH").hint;
        assert_eq!(hint, "create a new token with `warren token create --role manager`");
    }

    #[tokio::test]
    async fn unreachable_manager_is_reported() {
        let authority = warren_security::CaDigest::from_bytes([7; 32]);
        let token = JoinToken::generate(authority).unwrap();
        // It is bound and does not listen: no other socket gets the port, and connections are refused.
        let closed = tokio::net::TcpSocket::new_v4().unwrap();
        closed.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = closed.local_addr().unwrap().to_string();
        let failure = connect(&address, &token).await.unwrap_err();
        assert_eq!(failure.kind, ExitKind::Unreachable);
        assert!(failure.why.starts_with(&format!("cannot reach {address}: ")), "{}", failure.why);
    }
}
