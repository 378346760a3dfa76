//! The first connection of a machine or user that has only a token: no certificate, and no trusted authority.
//!
//! The token names the cluster's authority by its digest, and managers show the authority's certificate beside
//! their own. So one handshake is enough: the client's last message of it, and with it the first byte of any
//! request, is sent only after the authority was recognised and the manager's certificate verified under it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;

use crate::roots::ca_digest;
use crate::tls::{HTTP_2, is_outside_validity};
use crate::trust::provider;
use crate::{CaDigest, ConnectError, Identity, Role, Roots, TlsError, connect};

/// Why a token was not shown to the other side. Nothing secret was said.
#[derive(Debug, thiserror::Error)]
pub enum JoinConnectError {
    /// Another cluster answers, or a program that is not a manager.
    #[error(
        "the token is for the cluster with CA {wanted}, {} answers there: it is another cluster's manager, or the CA \
         was replaced since; check the address, or make a new token in that cluster",
        digest_text(found)
    )]
    AnotherCluster {
        /// The digest in the token.
        wanted: CaDigest,
        /// That of what was shown as authority, if anything was.
        found: Option<CaDigest>,
    },
    /// The manager's certificate is not valid at this time.
    #[error(
        "the manager's certificate is not valid now ({0}): set the clocks of both machines right; a manager renews its \
         own within a minute, and when it starts"
    )]
    Expired(CertificateError),
    /// It is of the right cluster, or claims to be, and is not one of its managers.
    #[error("the other side is not a manager of the token's cluster ({0}): check the address")]
    NotAManager(String),
    /// No secure connection came about.
    #[error("no secure connection to the manager")]
    Connect(#[source] ConnectError),
    /// TLS could not be set up.
    #[error(transparent)]
    TlsConfig(#[from] TlsError),
}

fn digest_text(found: &Option<CaDigest>) -> String {
    found.map_or_else(|| "somebody without a CA".to_owned(), |found| format!("one with CA {found}"))
}

/// Makes a connection to a manager secure, and makes sure that it is one of the cluster whose authority has the
/// digest `authority` ([`crate::JoinToken::authority`]). Gives the connection, on which this side is
/// [`crate::Peer::Anonymous`], and what to trust from now on.
pub async fn connect_to_join<S>(
    stream: S,
    authority: CaDigest,
    deadline: Duration,
) -> Result<(TlsStream<S>, Roots), JoinConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let verifier = Arc::new(DigestVerifier::new(authority));
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::from)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    config.resumption = Resumption::disabled();
    match (connect(stream, Arc::new(config), deadline).await, verifier.take_outcome()) {
        (Ok(stream), Some(Ok(roots))) => Ok((stream, roots)),
        (_, Some(Err(refused))) => Err(refused),
        // The certificate was good, the proof that the other side has its key was not.
        (Err(ConnectError::NotAManager(error)), _) => Err(JoinConnectError::NotAManager(error.to_string())),
        (Err(error), _) => Err(JoinConnectError::Connect(error)),
        (Ok(_), None) => Err(JoinConnectError::NotAManager("it showed no certificate".to_owned())),
    }
}

/// Trusts the one authority with this digest, and under it managers only. Keeps why it refused, since the library's
/// error cannot say it.
struct DigestVerifier {
    expected: CaDigest,
    algorithms: WebPkiSupportedAlgorithms,
    outcome: Mutex<Option<Result<Roots, JoinConnectError>>>,
}

impl DigestVerifier {
    fn new(desired: CaDigest) -> Self {
        let algorithms = provider().signature_verification_algorithms;
        Self { expected: desired, algorithms, outcome: Mutex::new(None) }
    }

    fn take_outcome(&self) -> Option<Result<Roots, JoinConnectError>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn verify(
        &self,
        own: &CertificateDer<'_>,
        beside: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<Roots, JoinConnectError> {
        let not_a_manager = |why: &dyn fmt::Display| JoinConnectError::NotAManager(why.to_string());
        let authority = beside.iter().find(|shown| ca_digest(shown) == self.expected);
        let authority = authority.ok_or_else(|| JoinConnectError::AnotherCluster {
            wanted: self.expected,
            found: beside.last().map(ca_digest),
        })?;
        let roots = Roots::of(authority).map_err(|error| not_a_manager(&error))?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots.store()), provider()).build();
        let verifier = verifier.map_err(|error| not_a_manager(&error))?;
        verifier.verify_server_cert(own, beside, name, &[], now).map_err(refusal)?;
        let identity = Identity::from_der(own).map_err(|error| not_a_manager(&error))?;
        if identity.role() != Role::Manager {
            return Err(not_a_manager(&format_args!("it is {identity}")));
        }
        Ok(roots)
    }
}

fn refusal(error: rustls::Error) -> JoinConnectError {
    match error {
        rustls::Error::InvalidCertificate(reason) if is_outside_validity(&reason) => {
            JoinConnectError::Expired(reason)
        }
        other => JoinConnectError::NotAManager(other.to_string()),
    }
}

impl fmt::Debug for DigestVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DigestVerifier({})", self.expected)
    }
}

impl ServerCertVerifier for DigestVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verdict = self.verify(end_entity, intermediates, server_name, now);
        let good = verdict.is_ok();
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(verdict);
        if !good {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
