//! Plain connections to managers as an administrator: one call is one attempt, without retries.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::Channel;
use warren_client::{ClientIdentity, ClientTarget, Contexts};
use warren_daemon::join::channel_over;
use warren_security::{Credentials, PrivateKey, ReloadableCertificate, Roots, client_config, connect};

/// The timeout for TCP and TLS each.
const CONNECT: Duration = Duration::from_secs(1);

/// The client's credentials, and the CA it trusts.
#[derive(Debug, Clone)]
pub struct AdminAccess {
    roots: Roots,
    credentials: Credentials,
}

impl AdminAccess {
    /// The credentials of the current context in the contexts file `file`.
    ///
    /// # Panics
    /// If there is none with a certificate.
    #[must_use]
    #[track_caller]
    pub fn of_contexts(file: &Path) -> Self {
        let contexts = Contexts::load(file).expect("the contexts file can be read");
        let name = contexts.current.clone().expect("one of the contexts is the current one");
        match &contexts.get(&name).expect("the current context exists").target {
            ClientTarget::Tcp { identity, .. } => Self::new(identity),
            ClientTarget::Unix { socket } => panic!("the current context is the socket {}", socket.display()),
        }
    }

    /// The credentials of `identity`.
    ///
    /// # Panics
    /// If it is not usable.
    #[must_use]
    #[track_caller]
    pub fn new(identity: &ClientIdentity) -> Self {
        let key = PrivateKey::parse(&identity.key.0).expect("a context's key");
        let credentials =
            Credentials::new(identity.certificate.clone(), key).expect("a context's certificate");
        Self { roots: Roots::parse(&identity.ca).expect("a context's authority"), credentials }
    }

    /// A connection to the manager at `address`, which is not re-established when it is lost.
    ///
    /// # Errors
    /// A description of the error; nothing was sent.
    pub async fn connect(&self, address: SocketAddr) -> Result<Channel, String> {
        let config = client_config(&self.roots, Some(ReloadableCertificate::new(&self.credentials)));
        let config = config.map_err(|error| error.to_string())?;
        let stream =
            timeout(CONNECT, TcpStream::connect(address)).await.map_err(|_| "no connection in time")?;
        let stream = stream.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let secure = connect(stream, config, CONNECT).await.map_err(|error| error.to_string())?;
        channel_over(secure).await.map_err(|error| error.to_string())
    }
}
