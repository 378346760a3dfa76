//! The way of a machine into a cluster, as far as it is the same for managers and workers: the first connection, on
//! which the cluster is recognised by the token's digest before anything is said, and how a refusal is told.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use warren_security::{JoinError, Roots, Token, connect_to_join};
use warren_types::{NodeRole, Violations};

use crate::{Exit, Failure, chain};

/// What did not happen.
pub const NOT_JOINED: &str = "this machine did not join";
/// For the TCP connection, and for the TLS handshake after it.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// For the answer: the manager writes it down durably first.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Reads the token that a machine shall become a `role` with.
///
/// # Errors
/// It is none.
pub fn parse_token(text: &str, role: NodeRole) -> Result<Token, Failure> {
    let hint = || format!("get one with `warren token create --role {}`", role.as_str());
    Token::parse(text).map_err(|error| Failure::new(Exit::Usage, NOT_JOINED, error, hint()))
}

/// Connects to the manager at `address` as a stranger, once it has proved to be one of the token's cluster. Gives the
/// one connection, and what to trust from now on.
///
/// # Errors
/// Nobody answers, or somebody else.
pub async fn dial(address: &str, token: &Token) -> Result<(Channel, Roots), Failure> {
    let late = || unreachable(address, format!("no answer within {CONNECT_DEADLINE:?}"));
    let stream = timeout(CONNECT_DEADLINE, TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| late())?.map_err(|error| unreachable(address, error.to_string()))?;
    // A request waits for its end otherwise until the other side acknowledges its beginning, which takes 40 ms.
    stream.set_nodelay(true).map_err(|error| unreachable(address, error.to_string()))?;
    let secure = connect_to_join(stream, token.authority(), CONNECT_DEADLINE).await;
    let (secure, roots) = secure.map_err(|error| refused_connection(&error))?;
    let channel = channel_over(secure).await.map_err(|error| unreachable(address, chain(&error)))?;
    Ok((channel, roots))
}

/// Waits for the answer to a request to join, at most for [`ANSWER_DEADLINE`].
///
/// # Errors
/// It did not come.
pub async fn answer<T>(address: &str, call: impl Future<Output = T>) -> Result<T, Failure> {
    let late = |_| unreachable(address, format!("no answer within {ANSWER_DEADLINE:?}"));
    timeout(ANSWER_DEADLINE, call).await.map_err(late)
}

/// A channel over exactly this connection: when it is lost, calls fail instead of dialling again.
///
/// # Errors
/// It is no HTTP/2 connection.
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
    // The address is never dialled, and https would be refused since TLS is done already.
    Endpoint::from_static("http://manager").connect_with_connector(connector).await
}

fn unreachable(address: &str, why: String) -> Failure {
    let why = format!("cannot reach {address}: {why}");
    Failure::new(Exit::Unreachable, NOT_JOINED, why, "check that the manager runs, and its address")
}

fn refused_connection(error: &JoinError) -> Failure {
    let exit = match error {
        JoinError::Connect(_) => Exit::Unreachable,
        JoinError::Settings(_) => Exit::Failed,
        JoinError::AnotherCluster { .. } | JoinError::Expired(_) | JoinError::NotAManager(_) => Exit::Denied,
    };
    let hint = match error {
        JoinError::Connect(_) => "check that a manager runs there, then try again",
        _ => "nothing secret was said to the other side",
    };
    Failure::new(exit, NOT_JOINED, chain(error), hint)
}

/// What a manager answered that did not let a machine in, or out: the status' code, the reason for programs, the
/// message for people, and the fields that are to blame.
#[derive(Debug, Clone)]
pub struct Refused {
    /// Of the status.
    pub code: Code,
    /// In capitals, for programs.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Fields that are wrong.
    pub violations: Violations,
}

impl Refused {
    /// The same in the words of an exit code, for a machine that wanted to be a `role`.
    pub fn into_failure(self, role: NodeRole) -> Failure {
        let Self { code, reason, message, violations } = self;
        let new_token = format!("make a new token with `warren token create --role {}`", role.as_str());
        let (exit, hint) = match code {
            Code::InvalidArgument => (Exit::Usage, "correct it and try again"),
            // The manager's words say what to do already.
            Code::AlreadyExists => (Exit::Conflict, ""),
            Code::PermissionDenied if reason.starts_with("TOKEN_") => (Exit::Denied, ""),
            Code::NotFound => (Exit::NotFound, "look at what there is with `warren node ls`"),
            Code::Unauthenticated | Code::PermissionDenied | Code::FailedPrecondition => {
                (Exit::Denied, new_token.as_str())
            }
            // No manager answers with `Unknown`: it is what a connection that breaks is called.
            Code::Unavailable | Code::Unknown => {
                (Exit::Unreachable, "try again in a moment: twice does no harm")
            }
            Code::DeadlineExceeded => (Exit::TimedOut, "try again in a moment"),
            _ => {
                let hint = "read what the manager at that address wrote to standard error, on its machine \
                            (`journalctl --unit UNIT` where systemd runs it)";
                (Exit::Failed, hint)
            }
        };
        Failure { fields: violations, ..Failure::new(exit, NOT_JOINED, message, hint) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_says_where_to_get_one() {
        let failure = parse_token("x", NodeRole::Manager).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(failure.hint, "get one with `warren token create --role manager`");
    }

    #[test]
    fn each_refusal_has_its_exit() {
        let refused = |code, reason: &str| {
            let (reason, message) = (reason.to_owned(), "no".to_owned());
            let refused = Refused { code, reason, message, violations: Violations::default() };
            refused.into_failure(NodeRole::Manager)
        };
        for (code, reason, exit) in [
            (Code::InvalidArgument, "X", Exit::Usage),
            (Code::AlreadyExists, "MANAGER_EXISTS", Exit::Conflict),
            (Code::PermissionDenied, "TOKEN_USED_UP", Exit::Denied),
            (Code::FailedPrecondition, "X", Exit::Denied),
            (Code::Unknown, "", Exit::Unreachable),
            (Code::Unavailable, "NO_LEADER", Exit::Unreachable),
            (Code::DeadlineExceeded, "X", Exit::TimedOut),
            (Code::Internal, "X", Exit::Failed),
        ] {
            assert_eq!(refused(code, reason).exit, exit, "{code:?}");
        }
        assert_eq!(refused(Code::PermissionDenied, "TOKEN_USED_UP").hint, "");
        let hint = refused(Code::PermissionDenied, "OTHER_CLUSTER").hint;
        assert_eq!(hint, "make a new token with `warren token create --role manager`");
    }

    #[tokio::test]
    async fn where_nobody_listens_nothing_is_said() {
        let authority = warren_security::CaDigest::from_bytes([7; 32]);
        let token = Token::generate(authority).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let failure = dial(&free, &token).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.why.starts_with(&format!("cannot reach {free}: ")), "{}", failure.why);
    }
}
